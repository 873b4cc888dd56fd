"""Lessons and corrections as the studio asks for them: the one place that knows how `modelfile` has them."""

from pathlib import Path

from oarlock.modelfile.learn import Display, Notice, Outcome, Settings, learn
from oarlock.studio.bench import Bench
from oarlock.studio.jobs import Job
from oarlock.studio.looking import Looking
from oarlock.studio.refusals import Refusal


def teach(model: Path, folder: Path, settings: Settings, display: Display, notice: Notice) -> Outcome:
    """Teach a model the classes of a folder, known ones among them; the model before can be gone back to."""
    return learn(model, folder, settings, display, notice)


class Corrections:
    """Correct the model, one lesson or correction at a time."""

    def __init__(self, bench: Bench, looking: Looking) -> None:
        self.bench, self.looking = bench, looking

    def rename(self, old: str, new: str) -> Job:
        raise Refusal(501, "classes cannot be renamed yet")

    def merge(self, one: str, other: str) -> Job:
        raise Refusal(501, "classes cannot be merged yet")

    def forget(self, name: str) -> Job:
        raise Refusal(501, "classes cannot be forgotten yet")

    def undo(self) -> Job:
        raise Refusal(501, "lessons cannot be undone yet")
