"""How benchmarks compare two ways to do the same work: in one process, in turns, and one JSON line at the end."""

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch

from oarlock.allocation import keep_freed_memory


class Clock:
    """Adds up the time spent inside `with clock:`; what a side does outside of it is preparation."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def __enter__(self) -> None:
        self.started = time.perf_counter()

    def __exit__(self, *_: object) -> None:
        self.seconds += time.perf_counter() - self.started


Side = Callable[[Clock], None]


class Times(NamedTuple):
    """Seconds of both sides."""

    ours: float
    theirs: float

    @property
    def ratio(self) -> float:
        return self.theirs / self.ours

    def details(self) -> dict[str, float]:
        return {"seconds": round(self.ours, 3), "reference_seconds": round(self.theirs, 3)}


def alternate(ours: Side, theirs: Side, repeats: int, warm_up: bool = True) -> Times:
    """Medians of calls made in turns, so that a machine that slows down slows both; a first pair may only warm up."""
    seconds: list[tuple[float, float]] = []
    for _ in range(repeats + warm_up):
        clocks = Clock(), Clock()
        for side, clock in zip((ours, theirs), clocks, strict=True):
            side(clock)
        seconds.append((clocks[0].seconds, clocks[1].seconds))
    return Times(*(statistics.median(column) for column in zip(*seconds[warm_up:], strict=True)))


def cpu_bf16() -> bool:
    """Whether this processor has instructions for bfloat16."""
    queries = ("_is_avx512_bf16_supported", "_is_amx_tile_supported")
    return any(getattr(torch.cpu, query, lambda: False)() for query in queries)


def report(name: str, ratio: float, goal: float, accuracy_difference: float | None, **details: Any) -> None:
    """The one line a benchmark prints. Accuracies are in percent, None where there is nothing to answer."""
    line = {
        "name": name,
        "ratio": round(ratio, 2),
        "goal": goal,
        "accuracy_difference": accuracy_difference,
        "cpu_bf16": cpu_bf16(),
        "threads": torch.get_num_threads(),
        **details,
    }
    print(json.dumps(line), flush=True)


def new_parser(description: str | None) -> argparse.ArgumentParser:
    """With what all benchmarks can be told."""
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=description, formatter_class=form)
    parser.add_argument("--threads", type=int, default=2)
    return parser


def parse(parser: argparse.ArgumentParser) -> argparse.Namespace:
    given = parser.parse_args()
    data = getattr(given, "data", None)
    if data is not None and data.endswith(".npz") and not Path(data).exists():
        parser.error(f"there is no file {data}: give CIFAR-100 as an .npz file with --data")
    torch.set_num_threads(given.threads)
    keep_freed_memory()  # as the command line does, for both sides
    return given
