"""Answers to folders of any size: the paths are cut into chunks, the answers to each are a part file that is written
whole, and the parts become one file at the end. What was answered is not asked again."""

import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from hashlib import sha256
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import torch

from oarlock.data.folders import is_image_name
from oarlock.data.images import Found
from oarlock.errors import OarlockError
from oarlock.files import sha256_of
from oarlock.learner import Learner, load
from oarlock.locks import locked
from oarlock.modelfile.answer_files import Counted, Fields, format_of
from oarlock.modelfile.predict import Complain, answer_files, find_images
from oarlock.stores import Store, is_url

BATCHES = 16  # in a chunk


@dataclass(frozen=True)
class Asking:
    """Hold how a model is asked."""

    weights: str | None = None
    device: str = "cpu"
    threads: int | None = None
    shortlist: Any = None
    twice: bool = False
    accept: float | None = None
    top: int = 0
    batch: int = 64

    def load(self, model: Path) -> Learner:
        if self.threads is not None:
            torch.set_num_threads(self.threads)
        learner = load(model, weights=self.weights, device=self.device)
        return learner.accelerate(shortlist=self.shortlist).look_twice(self.twice)


class Chunk(NamedTuple):
    """Hold paths, and the name of the part with the answers to them."""

    part: str
    paths: list[str]


class Answerer:
    """Answer chunks with a model that is loaded once."""

    def __init__(self, model: Path, asking: Asking, out: str) -> None:
        self.asking, self.learner = asking, asking.load(model)
        self.parts, self.format = parts_of(out), format_of(out)

    def answer(self, chunk: Chunk) -> None:
        """Write the part of a chunk."""
        rows = list(self._rows(chunk.paths))
        with self.parts.writing(chunk.part) as file:
            self.format.write(rows, Fields(self.learner.classes_.dtype.kind in "iu", self.asking.top > 0), file)

    def _rows(self, paths: Sequence[str]) -> Iterator[dict[str, Any]]:
        """An answer or an error for every path, in their order."""
        asking, errors = self.asking, list[OarlockError]()
        batches = answer_files(
            self.learner,
            paths,
            errors.append,
            accept=asking.accept,
            top=max(asking.top, 1),
            batch=asking.batch,
            find=found,
        )
        answers = iter([answer for batch in batches for answer in batch.answers])
        waiting, broken = next(answers, None), iter(errors)
        for path in paths:
            if waiting is not None and waiting.path == path:
                yield waiting.to_json(asking.top)
                waiting = next(answers, None)
            else:
                yield {"path": path, "error": str(next(broken))}


Engine = Callable[[Path, Asking, str, Sequence[Chunk]], Iterable[object]]  # answers chunks, and yields after each


def in_this_process(model: Path, asking: Asking, out: str, chunks: Sequence[Chunk]) -> Iterator[None]:
    """Answer chunks one after the other."""
    answerer = Answerer(model, asking, out)
    for chunk in chunks:
        answerer.answer(chunk)
        yield


def answer_into(
    out: str,
    model: Path,
    paths: Iterable[str],
    asking: Asking,
    *,
    engine: Engine = in_this_process,
    progress: Callable[[int, int], None] = lambda done, all: None,
) -> Counted:
    """Write the answers to images into one file, in the order of their paths; return how many there are. What an
    earlier call has answered is kept."""
    format_of(out)
    with _alone(out):
        chunks = cut(paths, model, asking, PurePosixPath(out).suffix)
        parts = parts_of(out)
        there = set(parts.names())
        missing = [chunk for chunk in chunks if chunk.part not in there]
        done = len(chunks) - len(missing)
        progress(done, len(chunks))
        for _ in engine(model, asking, out, missing) if missing else ():
            done += 1
            progress(done, len(chunks))
        return _merge(chunks, parts, out)


def cut(paths: Iterable[str], model: Path, asking: Asking, suffix: str) -> list[Chunk]:
    """Return all paths in chunks. A part's name tells what decides its content: the model, how it is asked, and the
    paths."""
    conditions = json.dumps([sha256_of(model), {**asdict(asking), "threads": None}])
    listed, size = list(paths), BATCHES * asking.batch
    if not listed:
        raise OarlockError("there is no image to look at")
    chunks = [listed[start : start + size] for start in range(0, len(listed), size)]
    keys = [sha256(json.dumps([conditions, chunk]).encode()).hexdigest()[:32] for chunk in chunks]
    names = [f"{number:06d}-{key}{suffix}" for number, key in enumerate(keys)]
    return [Chunk(name, chunk) for name, chunk in zip(names, chunks, strict=True)]


def parts_of(out: str) -> Store:
    """Return the folder of the parts, which stands beside the file they will be."""
    return Store(f"{out}.parts")


def _merge(chunks: Sequence[Chunk], parts: Store, out: str) -> Counted:
    with Store(out).writing() as file:
        counted = format_of(out).merge((parts.read(chunk.part) for chunk in chunks), file)
    parts.remove()
    return counted


def _alone(out: str) -> AbstractContextManager[None]:
    if is_url(out):
        return nullcontext()
    path = Path(out)
    return locked(path.parent / f".{path.name}.lock", f"another process is writing {out}")


def list_images(texts: Iterable[str], complain: Complain) -> Iterator[str]:
    """Yield the images that files, folders, patterns and folders in stores stand for."""
    for text in texts:
        if is_url(text):
            yield from _images_in(text)
        else:
            yield from map(str, find_images([text], complain))


def _images_in(url: str) -> Iterator[str]:
    store = Store(url)
    names = store.names()
    if names == [""]:
        yield url  # it is a file
        return
    visible = [name for name in names if not any(part.startswith(".") for part in PurePosixPath(name).parts)]
    images = [name for name in visible if is_image_name(PurePosixPath(name))]
    if not images:
        raise OarlockError(f"{url}: no images there")
    yield from map(store.url, images)


def found(path: str | Path) -> Found:
    """Return what a path stands for: the file itself, or in a store what is in it."""
    if not is_url(str(path)):
        return path
    return io.BytesIO(Store(str(path)).read())
