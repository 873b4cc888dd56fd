"""The commands for grids of runs: parse, call, print."""

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oarlock.cli.common import (
    Detector,
    On,
    Protector,
    Track,
    chosen_options,
    command,
    given,
    saying_how_to_continue,
)
from oarlock.errors import OarlockError
from oarlock.printing import console, put, say

if TYPE_CHECKING:
    from oarlock.experiments.processes import Pool

RUNS = Path("runs/bench")
Directory = Annotated[
    Path, typer.Argument(metavar="DIR", help="The directory of `oarlock bench`, or one protocol's.")
]


@command()
def bench(
    context: typer.Context,
    protocol: Annotated[str | None, typer.Option(help="One or several: c10-5t-mini,c100-10t-mini.")] = None,
    methods: Annotated[str, typer.Option(help="Which methods: row,slda,finetune, or all.")] = "all",
    orders: Annotated[int, typer.Option(help="How many class orders, from the first.")] = 1,
    memory: Annotated[str | None, typer.Option(help="Images kept for replay; the protocol's; or half.")] = None,
    data: Annotated[
        list[str] | None, typer.Option(help="Where the data lies: once, or once for each protocol.")
    ] = None,
    partial: Annotated[bool, typer.Option("--partial", help="Accept data with fewer images.")] = False,
    trunk: Annotated[str | None, typer.Option(help="The frozen network; the protocol's if not given.")] = None,
    weights: Annotated[str | None, typer.Option(help="A local file with the trunk's weights.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps.")] = "cpu",
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    threads: Annotated[int, typer.Option(help="CPU threads of each run.")] = 1,
    jobs: Annotated[int | None, typer.Option(help="Runs at a time, 1; numbers do not depend on it.")] = None,
    on: On = None,
    store: Annotated[
        str | None, typer.Option(help="With --on: where machines without a common disk meet, as s3://bucket/bench.")
    ] = None,
    protector: Protector = None,
    detector: Detector = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="An option: key=value for all methods, or row.key=value.")
    ] = None,
    out: Annotated[Path, typer.Option("--out", help="Directory of all runs.")] = RUNS,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what was planned in --out.")] = False,
    track: Track = None,
) -> None:
    """Run methods on protocols and class orders, several at a time; call it again to go on or to add more."""
    from oarlock.experiments.grid import work
    from oarlock.experiments.plan import FILE, Request, Settings
    from oarlock.experiments.series import named
    from oarlock.report.progress import GridDisplay
    from oarlock.report.run_page import write_report
    from oarlock.trackers.tracking import logged

    report = logged(write_report, track or ())
    requests = []
    if protocol is None:
        if not resume:
            raise OarlockError("say what to run: --protocol NAME --methods … (or --resume --out DIR)")
        if others := given(context) - {"out", "resume", "jobs", "on", "store", "track"}:
            raise OarlockError(f"resumed runs keep their settings: leave out {', '.join(sorted(others))}")
    else:
        listed = named(methods)
        chosen = chosen_options(options, protector=protector, detector=detector)
        names = [name.strip() for name in protocol.split(",")]
        for name, place in zip(names, _places(data or [], names), strict=True):
            settings = Settings(
                protocol=name,
                memory=_memory(memory),
                data=place,
                partial=partial,
                trunk=trunk,
                weights=None if weights is None else str(Path(weights).resolve()),
                device=device,
                seed=seed,
                threads=threads,
            )
            requests.append(Request(settings, listed, orders, _options(chosen, listed)))
    with (
        saying_how_to_continue(out / FILE, "bench", "--resume", "--out", out, *_again(on, store, track)),
        _pool(jobs, on, store, out) as pool,
        GridDisplay(console) as display,
    ):
        broken = work(requests, out, pool=pool, display=display, report=report)
    for run, error, file in broken:
        say(f"broken: {run}: {error} (in full: {file})")
    if broken:
        say("broken runs are tried again by the next call")
        raise SystemExit(1)
    say(f"all runs are finished: oarlock table {out}")


@command()
def table(
    directory: Directory = RUNS,
    measure: Annotated[str | None, typer.Option(help="aca, aia, forgetting, seconds, …; all if not given.")] = None,
    style: Annotated[str, typer.Option("--format", help="markdown, latex, csv, json.")] = "markdown",
    out: Annotated[Path | None, typer.Option("--out", help="Write to this file.")] = None,
) -> None:
    """Tabulate a grid of runs: mean ± std over class orders, beside the paper's numbers."""
    from oarlock.files import write_text
    from oarlock.report.formats import render
    from oarlock.report.tables import find_columns, tabulate

    text = render(tabulate(find_columns(directory), measure), style)
    if out is None:
        put(text)
    else:
        write_text(out, text)


@command()
def plot(
    directory: Directory = RUNS,
    out: Annotated[Path | None, typer.Option("--out", help="Where to write; DIR/figures if not given.")] = None,
) -> None:
    """Draw a figure for each protocol: accuracy after each task, forgetting, accuracy against cost (SVG and PNG)."""
    from oarlock.report.figures import write_figures
    from oarlock.report.tables import find_columns

    written = write_figures(find_columns(directory), out or directory / "figures")
    if not written:
        raise OarlockError(f"no run in {directory} is finished yet")
    for path in written:
        say(str(path))


def _pool(jobs: int | None, on: str | None, store: str | None, out: Path) -> "AbstractContextManager[Pool]":
    from oarlock.experiments.processes import Processes
    from oarlock.experiments.ray_runs import pool_on

    if on is None:
        if store is not None:
            raise OarlockError("--store goes with --on: processes of this machine share its disk")
        return nullcontext(Processes(1 if jobs is None else jobs))
    if jobs is not None:
        raise OarlockError(
            "--jobs is for processes of this machine; with --on it is the cluster that has room or not"
        )
    return pool_on(on, out, store)


def _again(on: str | None, store: str | None, track: Sequence[str] | None) -> list[str]:
    """What a grid does not keep, and has to be told again."""
    places = [part for name, value in (("--on", on), ("--store", store)) if value for part in (name, value)]
    return places + [part for name in track or () for part in ("--track", name)]


def _places(data: Sequence[str], protocols: Sequence[str]) -> list[str | None]:
    paths = [str(Path(path).resolve()) for path in data]
    if len(paths) not in (0, 1, len(protocols)):
        raise OarlockError(f"--data is given {len(paths)} times: give it once, or once for each protocol")
    return [*paths] if len(paths) == len(protocols) else [paths[0] if paths else None] * len(protocols)


def _memory(text: str | None) -> int | str | None:
    from oarlock.experiments.protocols import HALF

    if text is None or text == HALF:
        return text
    if not text.isdecimal():
        raise OarlockError(f"--memory {text!r}: give a number of images, or {HALF!r}")
    return int(text)


def _options(options: dict[str, str], methods: Sequence[str]) -> dict[str, dict[str, str]]:
    """By method; an option for one method is stronger than one for all."""
    by_method: dict[str, dict[str, str]] = {name: {} for name in methods}
    pairs = sorted(options.items(), key=lambda pair: "." in pair[0])
    for key, value in pairs:
        method, dot, option = key.rpartition(".")
        if dot and method not in by_method:
            raise OarlockError(f"--set {key}: {method!r} is not among the methods")
        for name in [method] if dot else methods:
            by_method[name][option] = value
    return by_method
