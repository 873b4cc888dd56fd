"""What `oarlock predict --out` does: bars and sentences around `modelfile/bulk.py`."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from oarlock.errors import OarlockError
from oarlock.printing import console, say

if TYPE_CHECKING:
    from oarlock.modelfile.bulk import Asking


class Problems(Protocol):
    """Count paths, and what is wrong with some."""

    def add(self, problem: OarlockError) -> None: ...

    def counting(self, paths: Iterator[str]) -> Iterator[str]: ...


def predict_into(
    out: str, on: str | None, model: Path, paths: Iterable[str], asking: "Asking", problems: Problems
) -> None:
    """Write answers into a file, and say how many."""
    from oarlock.clusters import check_engine
    from oarlock.modelfile.bulk import answer_into, in_this_process, list_images
    from oarlock.modelfile.bulk_ray import on_ray

    if on is not None:
        check_engine(on)
    listed = problems.counting(list_images(paths, problems.add))
    engine = in_this_process if on is None else on_ray(on)
    with _bar() as progress:
        counted = answer_into(out, model, listed, asking, engine=engine, progress=progress)
    broken = f", {counted.unreadable:,} of them not readable" if counted.unreadable else ""
    say(f"{out}: {counted.images:,} images{broken}")


@contextmanager
def _bar() -> Iterator[Callable[[int, int], None]]:
    """A bar of chunks done of all; without a terminal, none."""
    from rich.progress import Progress

    with Progress(console=console, transient=True, disable=not console.is_terminal) as bar:
        row = bar.add_task("answered", total=None)
        yield lambda done, all: bar.update(row, completed=done, total=all)
