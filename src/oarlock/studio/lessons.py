"""Named groups are taught to the model as its next task, and what that changed is told."""

import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from torch.optim import Optimizer

from oarlock.errors import OarlockError, check_number
from oarlock.modelfile.learn import Settings
from oarlock.modelfile.paths import begun_lesson, model_paths
from oarlock.studio.answers import is_known
from oarlock.studio.bench import LESSON, Bench
from oarlock.studio.corrections import teach
from oarlock.studio.current import Loaded
from oarlock.studio.jobs import Job, warnings_of_this_thread
from oarlock.studio.looking import Looking
from oarlock.studio.refusals import Refusal
from oarlock.studio.reports import accuracies, promises
from oarlock.training import Loss, Phase, Position

MOST_LOOKED_AT = 1000  # photos that are answered again after a lesson, to show what changed
SHOWN = 24  # of them in a report
CHOICES = ("method", "trunk", "memory", "epochs", "size", "seed")  # what may be said of a new model


class Progress:
    """Tell a job how learning goes; a job that is to stop does so at the next batch."""

    def __init__(self, job: Job) -> None:
        self.job, self.text, self.epochs = job, "", 1

    def on_start(self, tasks: int, finished: int) -> None:
        self.job.report(0.02, f"task {tasks} begins")

    def on_phase(self, task: int, phase: Phase) -> None:
        self.text, self.epochs = phase.name, max(phase.epochs, 1)
        self.job.report(0.02, self.text)

    def on_step(self, epoch: int, fraction: float, loss: Loss) -> None:
        self.job.report((epoch + fraction) / self.epochs, f"{self.text}: epoch {epoch + 1} of {self.epochs}")

    def on_checkpoint(self, position: Position, optimiser: Optimizer | None) -> None:
        self.job.report(self.job.share, self.job.text)


class Lessons:
    """Teach, one lesson at a time; reads go on with the model there was."""

    def __init__(self, bench: Bench, looking: Looking) -> None:
        self.bench, self.looking = bench, looking

    # -- lessons -------------------------------------------------------------------------------------------

    def learn(self, groups: Sequence[int], settings: Mapping[str, Any]) -> Job:
        """Begin to teach groups that have names; a group with the name of a known class is more photos of it."""
        self._refuse_second()
        model, chosen = self.bench.models.get(fresh=True), dict(settings)
        with self.bench.changing() as board:
            wanted = [board.group(number) for number in dict.fromkeys(groups)]
            if not wanted:
                raise Refusal(422, "no group was chosen: name the groups that are to be learned")
            if unnamed := [group for group in wanted if group.name is None]:
                raise Refusal(422, f"a group of {len(unnamed[0].photos)} photos has no name yet: say what it shows")
            if model is not None:
                chosen.clear()
            checked_settings(chosen)
            board.lesson = {
                "classes": {group.name: list(group.photos) for group in wanted},
                "groups": [group.id for group in wanted],
                "before": None if model is None else model.digest,
                "settings": chosen,
            }
        return self.go_on()

    def go_on(self) -> Job:
        """Begin the lesson that the board has; one that was interrupted goes on where it was."""
        self._refuse_second()
        with self.bench.reading() as board:
            lesson = board.lesson
        if lesson is None:
            raise Refusal(409, "no lesson was interrupted")
        names = ", ".join(lesson["classes"])
        return self.bench.jobs.start(LESSON, f"Learning {names[:80]}", lambda job: self._learned(job, lesson))

    def leave(self) -> None:
        """Give up a lesson that was interrupted; its groups stay."""
        self._refuse_second()
        self._forget_lesson()
        model_paths(self.bench.store.model).checkpoint.unlink(missing_ok=True)

    def _forget_lesson(self) -> None:
        with self.bench.changing() as board:
            board.lesson = None
        self.bench.store.clear_lesson()

    def _refuse_second(self) -> None:
        if self.bench.jobs.running(LESSON):
            title = self.bench.jobs.latest[LESSON].title
            raise Refusal(409, f"“{title}” is still going on: one lesson at a time")

    def _learned(self, job: Job, lesson: dict[str, Any]) -> dict[str, Any]:
        """A lesson that was refused is none; one that was stopped, by whatever it was, can go on."""
        try:
            return self._teach(job, lesson)
        except OarlockError:
            if not begun_lesson(model_paths(self.bench.store.model)):
                self._forget_lesson()
            raise

    def _teach(self, job: Job, lesson: dict[str, Any]) -> dict[str, Any]:
        bench, began = self.bench, time.perf_counter()
        job.report(0.0, "reading photos")
        before = bench.models.get(fresh=True)
        watched = [] if before is None else self._watched(lesson["classes"])
        told = self.looking.look(watched) if watched else {}
        folder = bench.store.lay_out(lesson["classes"])
        settings = Settings(**lesson["settings"], weights=bench.weights)
        with warnings_of_this_thread(job.note):
            outcome = teach(bench.store.model, folder, settings, Progress(job), job.note)
        job.stopping.clear()  # the model is there
        report = {
            "when": datetime.now(UTC).isoformat(timespec="seconds"),
            "task": outcome.task,
            "classes": {str(name): images for name, images in outcome.classes.items()},
            "seconds": round(time.perf_counter() - began, 1),
            "notes": list(job.notes),
        }
        job.report(1.0, "looking at what changed")
        after = bench.models.get(fresh=True)
        if after is not None:
            report |= self._changes(before, after, watched, told)
        self._conclude(report)
        return report

    def _watched(self, classes: Mapping[str, list[str]]) -> list[str]:
        """Return photos to be answered before and after: those of the lesson, then others that were sent."""
        with self.bench.reading() as board:
            photos = [*(photo for some in classes.values() for photo in some), *reversed(board.names)]
        return list(dict.fromkeys(photos))[:MOST_LOOKED_AT]

    def _changes(
        self, before: Loaded | None, after: Loaded, watched: list[str], told: Mapping[str, Any]
    ) -> dict[str, Any]:
        now, accept = self.looking.look(watched), self.bench.board.accept
        threshold = after.threshold(accept)
        old = None if before is None else before.threshold(accept)
        unknown = [p for p in watched if p in told and "error" not in told[p] and not is_known(told[p], old)]
        known = [p for p in unknown if "error" not in now[p] and is_known(now[p], threshold)]
        return {
            "unknown_before": len(unknown),
            "known_now": len(known),
            "examples": [{"photo": p, "label": now[p]["top"][0]["label"]} for p in known[:SHOWN]],
            "accuracy": accuracies(before, after),
            "promise": promises(after),
        }

    def _conclude(self, report: dict[str, Any]) -> None:
        """The photos of a lesson leave the board; those that were sent can still be tried."""
        with self.bench.changing() as board:
            assert board.lesson is not None
            board.groups = [group for group in board.groups if group.id not in board.lesson["groups"]]
            taught = (photo for photos in board.lesson["classes"].values() for photo in photos)
            board.learned = list(dict.fromkeys([*board.learned, *taught]))
            board.lesson = None
            board.reports.append(report)
        self.bench.store.clear_lesson()
        self.looking.answers.save()

    def recover(self) -> None:
        """Do what was left to do when the server was killed just after the model was written."""
        lesson, model = self.bench.board.lesson, self.bench.models.get(fresh=True)
        if lesson is None or model is None or model.digest == lesson["before"]:
            return
        if set(lesson["classes"]) <= {str(name) for name in model.learner.classes_.tolist()}:
            report = {
                "when": datetime.now(UTC).isoformat(timespec="seconds"),
                "task": len(model.learner.tasks_),
                "classes": {name: len(photos) for name, photos in lesson["classes"].items()},
                "notes": ["the server was stopped just after this lesson, so that nothing was compared"],
            }
            self._conclude(report)


def checked_settings(chosen: Mapping[str, Any]) -> None:
    """Refuse what cannot be said of a new model."""
    if strange := [name for name in chosen if name not in CHOICES]:
        raise Refusal(422, f"{strange[0]!r} cannot be chosen; {', '.join(CHOICES)} can")
    for name in ("method", "trunk"):
        if name in chosen and not isinstance(chosen[name], str):
            raise Refusal(422, f"{name} is a name")
    for name in ("memory", "epochs", "size", "seed"):
        if name in chosen:
            check_number(name, chosen[name], int, least=0, most=10**6)
