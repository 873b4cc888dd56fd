"""Corrections to a model as the studio asks for them: all that is known here about `modelfile/learn.py` and `edit.py`."""

from pathlib import Path

from oarlock.modelfile.learn import Display, Notice, Outcome, Settings, learn


def teach(model: Path, folder: Path, settings: Settings, display: Display, notice: Notice) -> Outcome:
    """Teach a model the classes of a folder, known ones among them; the model before can be gone back to."""
    return learn(model, folder, settings, display, notice)
