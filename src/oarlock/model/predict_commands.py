"""The commands that ask a model file: parse, call, print."""

import io
import json
import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from oarlock.cli_parts import console, say
from oarlock.errors import OarlockError
from oarlock.model.commands import Device, Model, Weights

if TYPE_CHECKING:
    from oarlock.learner import Learner

ACCEPT = 0.95

Accept = Annotated[
    float | None,
    typer.Option(
        show_default=str(ACCEPT),
        help="Share of known images to accept: what looks less known than these is unknown; lower rejects more.",
    ),
]
BatchSize = Annotated[int, typer.Option("--batch", min=1, help="Images looked at together.")]
Shortlist = Annotated[
    str | None,
    typer.Option(
        metavar="M|auto", help="Ask only the M tasks nearest under the bare trunk: faster, may change a few answers."
    ),
]
Threads = Annotated[int | None, typer.Option(min=1, help="CPU threads.")]


def predict(
    model: Model,
    paths: Annotated[
        list[str], typer.Argument(metavar="PATH…", help="Images, folders, patterns; - reads a list, one a line.")
    ],
    accept: Accept = None,
    top: Annotated[int, typer.Option(min=0, help="Add the so many likeliest classes, also of unknown images.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
    as_csv: Annotated[bool, typer.Option("--csv", help="Comma-separated values with a header.")] = False,
    batch: BatchSize = 64,
    shortlist: Shortlist = None,
    weights: Weights = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Say what images show: a learned class with its probability and task, or unknown; printed as it goes."""
    with _quiet_when_stopped():
        from oarlock.model.answer_lines import AnswerPrinter
        from oarlock.model.predicting import answer_files, find_images

        if as_json and as_csv:
            raise OarlockError("--json and --csv: choose one of them")
        learner = _load(model, weights, device, threads, shortlist)
        if accept is None and not len(learner.calibration):
            _complain("the model keeps no known images to set a threshold by, so nothing is called unknown")
        elif accept is None:
            accept = ACCEPT
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8", errors="surrogateescape")  # any bytes may be a file name
        kind: Literal["text", "json", "csv"] = "json" if as_json else "csv" if as_csv else "text"
        printer, problems = AnswerPrinter(console, kind, learner.classes_.tolist(), top), _Problems()
        found = problems.counting(find_images(_with_listed(paths), problems.add))
        for answered in answer_files(learner, found, problems.add, accept=accept, top=max(top, 1), batch=batch):
            printer.print(answered.answers)
        problems.conclude()


def unknowns(
    model: Model,
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Images, of known and unknown kinds.")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="A new folder, for copies of the unknown images.")],
    accept: Accept = None,
    groups: Annotated[
        int | None, typer.Option(help="How many; if not given, until they are as tight as learned classes.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="What groups.json holds, on one line.")] = False,
    batch: BatchSize = 64,
    weights: Weights = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Sort a folder's unknown images into groups, ready to be named and learned."""
    with _quiet_when_stopped():
        from oarlock.model.predicting import answer_files, find_images
        from oarlock.model.unknowns import check_empty, group_images, write_groups

        check_empty(out)
        learner, problems = _load(model, weights, device, threads), _Problems()
        accept = ACCEPT if accept is None else accept
        found = problems.counting(find_images([str(folder)], problems.add))
        rejected, pictures, images = [], [], 0
        for answered in answer_files(learner, found, problems.add, accept=accept, batch=batch):
            images += len(answered.answers)
            unknown = [row for row, answer in enumerate(answered.answers) if answer.label is None]
            rejected += [answered.answers[row] for row in unknown]
            pictures += [answered.pictures[row] for row in unknown]
        content: dict[str, Any] = {"model": str(model), "accept": accept, "images": images, "unknown": len(rejected)}
        if rejected:
            content = write_groups(out, rejected, group_images(learner, pictures, groups), content)
        if as_json:
            print(json.dumps(content))
        elif images:
            _print_groups(content, model, out)
        problems.conclude()


def _print_groups(content: dict[str, Any], model: Path, out: Path) -> None:
    from oarlock.report.wording import count, printable

    if not content["unknown"]:
        say(f"none of {count(content['images'], 'image')} is unknown; nothing was written")
        return
    say(f"{content['unknown']} of {count(content['images'], 'image')} unknown, copied to {printable(out)}:")
    for group in content["groups"]:
        size = f"{count(group['images'], 'image'):>12}"
        example = printable(group["files"][0]["from"])
        say(f"{group['folder']:<9}{size}   mean distance {group['mean_distance']:.2f}   such as {example}")
    learn = f"oarlock learn {shlex.quote(str(model))} {shlex.quote(str(out))}"
    say(f"Rename each folder to what it shows, remove what does not belong, then: {printable(learn)}")


class _Problems:
    """Paths that could not be used: named when they come up, and they decide how the command ends."""

    def __init__(self) -> None:
        self.paths = self.problems = 0

    def add(self, problem: OarlockError) -> None:
        self.problems += 1
        _complain(str(problem))

    def counting(self, paths: Iterator[Path]) -> Iterator[Path]:
        for path in paths:
            self.paths += 1
            yield path

    def conclude(self) -> None:
        """Exit code 1 when something was left out, 2 when there was no image to look at."""
        if not self.paths and not self.problems:
            raise OarlockError("no paths were given; give images, folders, or - and a list on standard input")
        if self.problems:
            raise SystemExit(1 if self.paths else 2)


def _with_listed(paths: Sequence[str]) -> Iterator[str]:
    """The paths, with those that stand on standard input in place of a dash."""
    for path in paths:
        if path == "-":
            lines = (os.fsdecode(line).rstrip("\r\n") for line in sys.stdin.buffer)
            yield from (line for line in lines if line)
        else:
            yield path


def _load(
    model: Path, weights: str | None, device: str, threads: int | None, shortlist: str | None = None
) -> "Learner":
    import torch

    from oarlock.learner import load

    if threads is not None:
        torch.set_num_threads(threads)
    return load(model, weights=weights, device=device).accelerate(shortlist=_tasks(shortlist))


def _tasks(shortlist: str | None) -> Any:
    if shortlist is None or shortlist == "auto":
        return shortlist
    try:
        return int(shortlist)
    except ValueError:
        raise OarlockError(f"--shortlist {shortlist}: give a number of tasks, or auto") from None


def _complain(what: str) -> None:
    from oarlock.report.wording import printable

    print(f"oarlock: {printable(what)}", file=sys.stderr)


@contextmanager
def _quiet_when_stopped() -> Iterator[None]:
    """After Ctrl-C there is nothing to say: what was answered stands there, and nothing was changed."""
    try:
        yield
    except KeyboardInterrupt:
        raise SystemExit(130) from None
