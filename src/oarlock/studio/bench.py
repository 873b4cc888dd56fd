"""What all parts of the studio work on: the board, the photos, the model that answers, and what is going on."""

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from oarlock.studio.batching import Batcher
from oarlock.studio.board import Board
from oarlock.studio.current import CurrentModel
from oarlock.studio.jobs import Jobs
from oarlock.studio.store import Store

LESSON = "lesson"  # the kind of jobs that change the model, of which there is one at a time


class Bench:
    """Hold one model with its board; every change of the board is on the disk before it is answered."""

    def __init__(self, model: Path, folder: Path | None = None, weights: str | None = None) -> None:
        self.store = Store(model, folder)
        self.models = CurrentModel(self.store.model, weights)
        self.weights = weights
        self.batcher, self.jobs = Batcher(), Jobs()
        self.closing = threading.Event()  # no more news
        self.changes = 0  # counted, so that pages know when to look again
        self._lock, self._open = threading.RLock(), ExitStack()
        self.board = Board()

    def __enter__(self) -> "Bench":
        self._open.enter_context(self.store.alone())
        self.board = self.store.load()
        return self

    def __exit__(self, *_: object) -> None:
        self.batcher.stop()
        self._open.close()

    @contextmanager
    def reading(self) -> Iterator[Board]:
        """Yield the board, which nobody changes meanwhile."""
        with self._lock:
            yield self.board

    @contextmanager
    def changing(self) -> Iterator[Board]:
        """Yield a copy of the board, which takes its place when all went well and is on the disk."""
        with self._lock:
            board = Board.from_json(self.board.to_json())
            yield board
            self.store.save(board)
            self.board = board
            self.changes += 1

    def changed(self) -> None:
        """Have pages look again."""
        with self._lock:
            self.changes += 1

    def there(self) -> set[str]:
        """Return the ids of all photos that the studio has."""
        folder = self.store.folder
        return set(self.board.names) | set(folder.paths if folder is not None else ())

    def name(self, photo: str) -> str:
        """Return what a photo was called by whoever gave it."""
        folder = self.store.folder
        if photo in self.board.names:
            return self.board.names[photo]
        path = folder.paths.get(photo) if folder is not None else None
        return photo if folder is None or path is None else folder.name(path)
