"""The studio of one model, without HTTP: what the page and the API ask for, in one place."""

import importlib.util
from pathlib import Path
from typing import Any

from oarlock.methods import methods
from oarlock.nets.trunks import BUNDLED, DEFAULT
from oarlock.studio.bench import LESSON, Bench
from oarlock.studio.corrections import Corrections
from oarlock.studio.gallery import Gallery
from oarlock.studio.lessons import Lessons
from oarlock.studio.looking import Looking

TRUNKS = [DEFAULT, BUNDLED]  # that can be chosen on the page; the command line knows all
PREVIEW = 200  # photos of a group that the page is told of at once


class Studio:
    """Hold the parts of the studio; a context in which nobody else has one of the same model."""

    def __init__(self, model: Path, folder: Path | None = None, weights: str | None = None) -> None:
        self.bench = Bench(model, folder, weights)
        self.looking = Looking(self.bench)
        self.lessons = Lessons(self.bench, self.looking)
        self.gallery = Gallery(self.bench)
        self.corrections = Corrections(self.bench, self.looking.answers)

    def __enter__(self) -> "Studio":
        self.bench.__enter__()
        self.looking.answers.load()
        self.lessons.recover()
        return self

    def __exit__(self, *_: object) -> None:
        self.looking.answers.save()
        self.bench.__exit__()

    def overview(self) -> dict[str, Any]:
        """Return what the page shows before anything is asked, and again after every change."""
        bench, store = self.bench, self.bench.store
        with bench.reading() as board:
            groups = [
                {"id": g.id, "name": g.name, "count": len(g.photos), "photos": g.photos[:PREVIEW]}
                for g in board.groups
            ]
            lesson = board.lesson and {name: len(photos) for name, photos in board.lesson["classes"].items()}
            state = {
                "accept": board.accept,
                "groups": groups,
                "thrown": board.thrown[:PREVIEW],
                "sent": len(board.names),
                "reports": board.reports[::-1],
            }
        return {
            "changes": bench.changes,
            "file": store.model.name,
            "model": self.gallery.facts(),
            "problem": bench.models.problem,
            "folder": None if store.folder is None else _folder(store.folder),
            "unknown": len(self.looking.unknown()),
            "interrupted": None if bench.jobs.running(LESSON) else lesson,
            "jobs": bench.jobs.to_json(),
            "choices": {
                "methods": sorted(methods.all()),
                "method": "oar",
                "trunks": TRUNKS,
                "trunk": DEFAULT,
            },
            "undo": self.corrections.can_undo,
            "onnx": importlib.util.find_spec("onnxruntime") is not None,
            **state,
        }

    def set_accept(self, accept: float) -> None:
        """Keep how many known photos are to be accepted."""
        with self.bench.changing() as board:
            board.accept = accept

    def add_class_folders(self, names: list[str]) -> None:
        """Make a named group of each of some class folders of the folder."""
        folder = self.looking._folder()
        classes = folder.classes()
        with self.bench.changing() as board:
            for name in names:
                if name in classes:
                    board.add(classes[name], name)


def _folder(folder: Any) -> dict[str, Any]:
    classes = {name: len(photos) for name, photos in folder.classes().items()}
    return {"name": folder.root.name, "photos": len(folder.paths), "classes": classes}
