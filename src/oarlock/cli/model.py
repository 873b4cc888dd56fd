"""The commands about a model file: parse, call, print."""

import io
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar

import typer

from oarlock.cli.common import (
    AsJson,
    Detector,
    Device,
    KeepPrevious,
    Model,
    On,
    Protector,
    Size,
    Track,
    Weights,
    chosen_options,
    command,
    saying_how_to_continue,
)
from oarlock.errors import OarlockError
from oarlock.printing import SafeConsole, complain, console, put_json, say

if TYPE_CHECKING:
    from oarlock.learner import Learner


@command()
def learn(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The model file; created if there is none.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Images of new classes: FOLDER/<class>/*.")],
    only: Annotated[list[str] | None, typer.Option(help="Of the folder's classes only these: a,b,c.")] = None,
    group_by: Annotated[
        str | None,
        typer.Option(help="Images that stay together: folder (sub-folders of a class), prefix (of file names)."),
    ] = None,
    more: Annotated[
        bool, typer.Option("--more", help="Teach known classes these images as well, in place of skipping them.")
    ] = False,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse known classes in place of skipping them.")] = False,
    memory: Annotated[
        int | None, typer.Option(help="Images kept for replay: 200; of an existing model, a larger number.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of training, for this and later tasks.")] = None,
    method: Annotated[str | None, typer.Option(help="Of a new model: the method, oar if not given.")] = None,
    trunk: Annotated[
        str | None, typer.Option(help="Of a new model: vit_pico, efficientnet_lite0, … (oarlock trunks)")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Of a new model: the seed of every random choice.")] = None,
    protector: Protector = None,
    detector: Detector = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="Of a new model: an option of the method, key=value.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="A local file with the trunk's weights.")] = None,
    size: Size = None,
    device: Device = "cpu",
    threads: Annotated[int | None, typer.Option(help="CPU threads; part of what makes results repeatable.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget learning that was interrupted.")] = False,
    keep_previous: KeepPrevious = False,
    track: Track = None,
    as_json: AsJson = False,
) -> None:
    """Create a model, or teach it the new classes of a folder as its next task; again, to go on after Ctrl-C."""
    from oarlock.modelfile.paths import model_paths

    news = SafeConsole(stderr=True) if as_json else console
    again = [argument for argument in sys.argv[1:] if argument != "--fresh"]

    def notice(text: str) -> None:
        say(text, to=news)

    with saying_how_to_continue(model_paths(model).checkpoint, *again):
        from oarlock.modelfile.learn import Settings
        from oarlock.modelfile.learn import learn as teach
        from oarlock.report.model_terminal import print_outcome
        from oarlock.report.progress import ProgressBar
        from oarlock.trackers.tracking import LessonTracking

        settings = Settings(
            method=method,
            trunk=trunk,
            weights=weights,
            size=size,
            memory=memory,
            epochs=epochs,
            seed=seed,
            options=chosen_options(options, protector=protector, detector=detector),
            device=device,
            threads=threads,
        )
        with _warnings_as(notice), ProgressBar(news) as bar, LessonTracking(bar, track or (), model) as display:
            outcome = teach(
                model,
                folder,
                settings,
                display,
                notice,
                only=only or (),
                group_by=group_by,
                strict=strict,
                more=more,
                fresh=fresh,
                keep_previous=keep_previous,
            )
            display.conclude(outcome)
    if as_json:
        put_json(outcome.to_json())
    else:
        print_outcome(outcome, console)


@command()
def inspect(model: Model, weights: Weights = None, as_json: AsJson = False) -> None:
    """Show what a model file holds: classes, images, memory, free capacity, trunk, sizes."""
    from oarlock.modelfile.inspect import inspect as facts_of
    from oarlock.report.model_terminal import print_inspection

    facts = facts_of(model, weights)
    if as_json:
        put_json(facts)
    else:
        print_inspection(facts, console)


@command()
def export(
    model: Model,
    onnx: Annotated[Path, typer.Option(metavar="FILE", help="The file to write, such as shop.onnx.")],
    weights: Weights = None,
    as_json: AsJson = False,
) -> None:
    """Write a model as an ONNX graph, for programs without torch: pixels in, log-probabilities and a score out."""
    from oarlock.learner import load
    from oarlock.modelfile.export import export_onnx

    written = export_onnx(load(model, weights=weights), onnx)
    if as_json:
        put_json({**written._asdict(), "path": str(onnx)})
    else:
        say(
            f"{onnx}: {written.bytes / 1e6:.1f} MB; answers to {written.images} images compared with "
            f"torch's, largest difference {written.difference:.1g}"
        )


@command()
def verify(model: Model, weights: Weights = None, device: Device = "cpu", as_json: AsJson = False) -> None:
    """Ask finished tasks again what they were asked when they were learned; exit code 1 if an answer changed."""
    from oarlock.modelfile.inspect import verify as check
    from oarlock.report.model_terminal import print_verification

    verification = check(model, weights=weights, device=device)
    if as_json:
        put_json(verification.to_json())
    else:
        print_verification(verification, console)
    if not verification.holds:
        raise SystemExit(1)


@contextmanager
def _warnings_as(notice: Callable[[str], None]) -> Iterator[None]:
    """A warning to a programmer is a line to a user."""
    with warnings.catch_warnings():
        warnings.filterwarnings("always", category=UserWarning, module="oarlock")
        warnings.showwarning = lambda message, *_, **__: notice(f"note: {message}")
        yield


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


@command()
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
    twice: Annotated[
        bool, typer.Option("--twice", help="Look at mirror images as well: for twice the price, a little better.")
    ] = False,
    out: Annotated[
        str | None,
        typer.Option("--out", help="Write answers to this .jsonl or .parquet file, or s3://…; again to go on."),
    ] = None,
    on: On = None,
    weights: Weights = None,
    device: Device = "cpu",
    threads: Threads = None,
) -> None:
    """Say what images show: a learned class with its probability and task, or unknown; printed as it goes."""
    from oarlock.cli.answers import predict_into
    from oarlock.modelfile.bulk import Asking
    from oarlock.modelfile.predict import answer_files, find_images
    from oarlock.report.model_terminal import AnswerPrinter

    if as_json and as_csv:
        raise OarlockError("--json and --csv: choose one of them")
    if out is None and on is not None:
        raise OarlockError("--on goes with --out FILE: say where the answers are to be written")
    if out is not None and (as_json or as_csv):
        raise OarlockError("--out FILE says by its name what is written: leave out --json and --csv")
    asking = Asking(weights, device, threads, _tasks(shortlist), twice, accept, top, batch)
    learner, problems = asking.load(model), _Problems()
    if accept is None and not len(learner.calibration):
        complain("the model keeps no known images to set a threshold by, so nothing is called unknown")
    elif accept is None:
        accept = ACCEPT
    if out is not None:
        predict_into(out, on, model, _with_listed(paths), replace(asking, accept=accept), problems)
        problems.conclude()
        return
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8")  # classes have names in every language
    kind: Literal["text", "json", "csv"] = "json" if as_json else "csv" if as_csv else "text"
    printer = AnswerPrinter(console, kind, learner.classes_.tolist(), top)
    found = problems.counting(find_images(_with_listed(paths), problems.add))
    for answered in answer_files(learner, found, problems.add, accept=accept, top=max(top, 1), batch=batch):
        printer.print(answered.answers)
    problems.conclude()


@command()
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
    from oarlock.modelfile.predict import answer_files, find_images
    from oarlock.modelfile.unknowns import check_empty, group_images, write_groups

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
        put_json(content)
    elif images:
        _print_groups(content, model, out)
    problems.conclude()


def _print_groups(content: dict[str, Any], model: Path, out: Path) -> None:
    from oarlock.report.wording import count

    if not content["unknown"]:
        say(f"none of {count(content['images'], 'image')} is unknown; nothing was written")
        return
    say(f"{content['unknown']} of {count(content['images'], 'image')} unknown, copied to {out}:")
    for group in content["groups"]:
        size = f"{count(group['images'], 'image'):>12}"
        example = group["files"][0]["from"]
        say(f"{group['folder']:<9}{size}   mean distance {group['mean_distance']:.2f}   such as {example}")
    learn = f"oarlock learn {shlex.quote(str(model))} {shlex.quote(str(out))}"
    say(f"Rename each folder to what it shows, remove what does not belong, then: {learn}")


Listed = TypeVar("Listed")


class _Problems:
    """Paths that could not be used: named when they come up, and they decide how the command ends."""

    def __init__(self) -> None:
        self.paths = self.problems = 0

    def add(self, problem: OarlockError) -> None:
        self.problems += 1
        complain(*problem.args)

    def counting(self, paths: Iterator[Listed]) -> Iterator[Listed]:
        for path in paths:
            self.paths += 1
            yield path

    def conclude(self) -> None:
        """Exit with code 1 when something was left out, 2 when there was no image to look at."""
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
