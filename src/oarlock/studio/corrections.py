"""Lessons and corrections as the studio asks for them: the one place that knows how `modelfile` has them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from oarlock.modelfile import edit
from oarlock.modelfile.learn import Display, Notice, Outcome, Settings, learn
from oarlock.modelfile.paths import model_paths
from oarlock.studio.answers import Answers
from oarlock.studio.bench import LESSON, Bench
from oarlock.studio.board import class_name
from oarlock.studio.jobs import Job
from oarlock.studio.refusals import Refusal


def teach(model: Path, folder: Path, settings: Settings, display: Display, notice: Notice) -> Outcome:
    """Teach a model the classes of a folder, known ones among them; the model before can be gone back to."""
    return learn(model, folder, settings, display, notice, more=True, keep_previous=True)


class Corrections:
    """Correct the model in the background; one correction or lesson at a time."""

    def __init__(self, bench: Bench, answers: Answers) -> None:
        self.bench, self.answers = bench, answers

    @property
    def can_undo(self) -> bool:
        """Return whether the model before the last change was kept."""
        return model_paths(self.bench.store.model).previous.is_file()

    def rename(self, old: str, new: str) -> Job:
        """Call a class by another name."""
        new = class_name(new)
        return self._correct(f"Renaming {old}", lambda model: edit.rename(model, old, new, **self._ways()))

    def merge(self, kept: str, other: str) -> Job:
        """Make one class of two."""
        return self._correct(
            f"Merging {other} into {kept}", lambda model: edit.merge(model, kept, other, **self._ways())
        )

    def forget(self, name: str) -> Job:
        """Take a class out of the model. Nothing stays that has it, so this cannot be undone."""

        def change(model: Path) -> edit.Corrected:
            corrected = edit.forget(model, name, weights=self.bench.weights)
            self._let_go(name)
            return corrected

        return self._correct(f"Forgetting {name}", change)

    def undo(self) -> Job:
        """Go back to the model before the last change."""
        return self._correct("Undoing", edit.undo)

    def _let_go(self, name: str) -> None:
        """Remove what was made of a class beside the model: answers, a graph, what is told of its lessons."""
        self.answers.clear()
        self.bench.store.graph.unlink(missing_ok=True)
        with self.bench.changing() as board:
            for report in board.reports:
                report["classes"].pop(name, None)
                report["examples"] = [one for one in report.get("examples", []) if str(one["label"]) != name]

    def _ways(self) -> dict[str, Any]:
        return {"weights": self.bench.weights, "keep_previous": True}

    def _correct(self, title: str, change: Callable[[Path], edit.Corrected]) -> Job:
        if self.bench.board.lesson is not None:
            raise Refusal(409, "a lesson is going on, or was interrupted: let it end first, or give it up")

        def work(job: Job) -> dict[str, Any]:
            job.report(0.5, "writing the model")
            corrected = change(self.bench.store.model)
            if corrected.edit in ("undo", "forget"):
                with self.bench.changing() as board:
                    board.learned = []  # what is unknown again may wait for a lesson again
            self.bench.models.get(fresh=True)
            self.bench.changed()
            return {"edit": corrected.edit, "classes": corrected.classes_in_all}

        return self.bench.jobs.start(LESSON, title, work)
