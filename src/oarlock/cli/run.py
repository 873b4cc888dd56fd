"""The commands that learn a stream and measure it: parse, call, print."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oarlock.cli.common import (
    AsJsonLines,
    Detector,
    Protector,
    Set,
    Size,
    Track,
    chosen_options,
    command,
    given,
    saying_how_to_continue,
)
from oarlock.errors import OarlockError
from oarlock.printing import complain, console, put_json, say

if TYPE_CHECKING:
    from oarlock.trackers.tracking import RunTracking

Out = Annotated[Path | None, typer.Option("--out", help="Directory of the run; a new one under runs/ if not given.")]


@command()
def demo(out: Out = None) -> None:
    """Learn the bundled sample (ten classes, five tasks), reject what was never learned, write a report."""
    from oarlock.experiments.config import RunConfig
    from oarlock.nets.trunks import DEFAULT

    say(
        "Ten kinds of photographs, learned two at a time; ten other kinds are never learned.",
        f"The trunk, {DEFAULT}, was pre-trained on ImageNet and saw such kinds there. On a trunk that did not:",
        "  oarlock run sample --order 1",
    )
    _run(RunConfig("sample", increment=2, order=1, trunk=DEFAULT), out or _free_directory("demo"), resume=False)


@command()
def run(
    context: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(help="'sample', an .npz file, a folder of classes, cifar10, cifar100, …"),
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="In place of a source: c10-5t, c10-5t-mini, … (docs/protocols.md).")
    ] = None,
    test: Annotated[
        Path | None, typer.Option(help="A folder of classes to test on, where the source is one to train on.")
    ] = None,
    unknown: Annotated[Path | None, typer.Option(help="A folder with images of no learned class.")] = None,
    data: Annotated[str | None, typer.Option(help="Where the protocol's data lies; downloaded if not given.")] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Accept data with fewer images than the protocol asks for.")
    ] = False,
    method: Annotated[
        str, typer.Option(help="The method; or row,slda,hat, or all: one run each, and a comparison.")
    ] = "oar",
    increment: Annotated[
        str | None, typer.Option(help="Classes per task: 2 (default), or task by task: 4,2,2 (the rest is left out).")
    ] = None,
    order: Annotated[str, typer.Option(help="Class order: 0 as listed, 1-5 shuffled, or names: cat,dog,…")] = "0",
    seed: Annotated[int, typer.Option(help="Seed of every random choice.")] = 0,
    memory: Annotated[
        str | None, typer.Option(help="Images kept for replay: 200, or the protocol's; 'half' is half of that.")
    ] = None,
    calibration: Annotated[
        float | None,
        typer.Option(help="Share of images kept out of training for thresholds: 0.1; in protocols 0."),
    ] = None,
    validation: Annotated[float, typer.Option(help="Test on this share of the training images instead.")] = 0.0,
    trunk: Annotated[
        str | None,
        typer.Option(
            help="efficientnet_lite0 for your own folders, else vit_pico, or the protocol's (oarlock trunks)."
        ),
    ] = None,
    weights: Annotated[str | None, typer.Option(help="A local file with the trunk's weights.")] = None,
    size: Size = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="CPU threads; part of what makes a run repeatable.")] = None,
    devices: Annotated[int, typer.Option(help="Processes that share the batches of training (docs/scale.md).")] = 1,
    protector: Protector = None,
    detector: Detector = None,
    options: Set = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
    track: Track = None,
) -> None:
    """Learn a stream of tasks and measure after each."""
    from oarlock.experiments import series as several
    from oarlock.experiments.config import RunConfig, saved_config

    if source is None and protocol is None:
        if not resume or out is None:
            raise OarlockError(
                "say what to learn: 'sample', an .npz file, a folder, --protocol NAME (or --resume --out DIR)"
            )
        if others := given(context) - {"out", "resume", "devices", "track"}:
            raise OarlockError(f"a resumed run keeps its settings: leave out {', '.join(sorted(others))}")
        if several.holds_several(out):
            _run_several(several.saved_configs(out), out, resume, devices, track or ())
        else:
            _run(saved_config(out), out, resume, devices, track or ())
        return
    chosen = {
        "increment": None if increment is None else _increment(increment),
        "memory": _memory(memory, protocol),
        "calibration": calibration,
        "trunk": trunk,
        "size": size,
        "threads": threads,
    }
    config: dict[str, Any] = {
        **_source_settings(source, protocol, data, partial),
        **{name: str(folder.resolve()) for name, folder in (("test", test), ("unknown", unknown)) if folder},
        **{name: value for name, value in chosen.items() if value is not None},
        "method": method,
        "order": int(order) if order.isdecimal() else order.split(","),
        "validation": validation,
        "seed": seed,
        "weights": None if weights is None else str(Path(weights).resolve()),
        "device": device,
        "options": chosen_options(options, protector=protector, detector=detector),
    }
    if several.is_several(method):
        configs = several.expand(RunConfig(**config))
        name = method if method == several.ALL else "+".join(config.method for config in configs)
        _run_several(configs, out or _free_directory(name), resume, devices, track or ())
    else:
        _run(RunConfig(**config), out or _free_directory(method), resume, devices, track or ())


@command()
def report(directory: Annotated[Path, typer.Argument(help="The directory of a finished run.")]) -> None:
    """Write the report page of a finished run again, and print its numbers."""
    from oarlock.experiments.result import RunResult
    from oarlock.report.run_page import write_report
    from oarlock.report.terminal import print_summary

    page = write_report(directory)
    print_summary(RunResult.read(directory), console)
    say(f"report: {page}")


@command()
def compare(
    directories: Annotated[list[Path], typer.Argument(help="Finished runs, or directories that hold them.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; the directory if one is given, else the current one.")
    ] = None,
    as_json: AsJsonLines = False,
) -> None:
    """Set finished runs side by side, averaged over class orders and seeds: compare.html and compare.md."""
    from oarlock.report.comparison import compare as compare_runs

    _compare(compare_runs(directories), out or (directories[0] if len(directories) == 1 else Path()), as_json)


def _run(config: Any, out: Path, resume: bool, count: int = 1, track: Sequence[str] = ()) -> None:
    from oarlock.devices import launch
    from oarlock.experiments.run import run as do_run
    from oarlock.report.run_page import write_report
    from oarlock.report.terminal import print_summary

    if count > 1 and config.device != "cpu":
        raise OarlockError(f"--devices {count} is for the CPU, not for --device {config.device}")
    devices = launch(count)
    out = devices.agree(out)
    if devices.rank:
        _follow(config, out, devices)
        return
    with _tracking(out, "config.json", track) as display:
        result = do_run(config, out, resume=resume, display=display, devices=devices)
        page = display.reporting(write_report)(out)
    say(f"model:  {out / 'model.oar'}", f"report: {page}", "")
    print_summary(result, console)


def _follow(config: Any, out: Path, devices: Any) -> None:
    """Be one of several processes, of which the first says all that there is to say."""
    import warnings

    from oarlock.devices import Lost
    from oarlock.experiments.run import follow

    warnings.simplefilter("ignore")
    try:
        follow(config, out, devices)
    except Lost:
        raise SystemExit(2) from None


def _run_several(configs: list[Any], out: Path, resume: bool, devices: int, track: Sequence[str]) -> None:
    from oarlock.experiments.series import run_several
    from oarlock.report.comparison import compare as compare_runs
    from oarlock.report.run_page import write_report

    if devices > 1:
        raise OarlockError(f"--devices {devices} is for one method at a time")
    with _tracking(out, "runs.json", track) as display:
        report = display.reporting(write_report)
        directories = run_several(configs, out, resume=resume, display=display, report=report)
    _compare(compare_runs(directories), out)


@contextmanager
def _tracking(out: Path, started: str, track: Sequence[str]) -> Iterator["RunTracking"]:
    """A display that shows runs and logs them; after Ctrl-C it is said how to go on."""
    from oarlock.report.progress import ProgressBar
    from oarlock.trackers.tracking import RunTracking

    again = [part for name in track for part in ("--track", name)]
    with (
        saying_how_to_continue(out / started, "run", "--resume", "--out", out, *again),
        ProgressBar() as display,
        RunTracking(display, track, out) as tracking,
    ):
        yield tracking


def _compare(comparison: Any, out: Path, as_json: bool = False) -> None:
    from oarlock.report.comparison_page import write_comparison
    from oarlock.report.terminal import print_comparison

    page = write_comparison(comparison, out)
    if not as_json:
        say(f"comparison: {page}", "")
        print_comparison(comparison, console)
        return
    for warning in comparison.warnings:
        complain(warning)
    for method in comparison.methods:
        put_json(method.to_json())


def _free_directory(name: str) -> Path:
    number = 1
    while (out := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return out


def _source_settings(source: str | None, protocol: str | None, data: str | None, partial: bool) -> dict[str, Any]:
    from oarlock.data.datasets import datasets
    from oarlock.experiments.protocols import run_settings
    from oarlock.nets.trunks import DEFAULT

    if protocol is not None:
        if source is not None:
            raise OarlockError(f"{source!r}: a protocol has its own data; say where it lies with --data PATH")
        return run_settings(protocol, data=data, partial=partial)
    if data is not None or partial:
        raise OarlockError(f"{'--partial' if data is None else '--data'} goes with --protocol NAME")
    if source == "sample" or source in datasets.all():
        return {"source": source}
    path = Path(str(source)).resolve()
    return {"source": str(path), **({"trunk": DEFAULT} if path.is_dir() else {})}


def _memory(text: str | None, protocol: str | None) -> int | None:
    from oarlock.experiments.protocols import HALF, find

    if text is None:
        return None
    if text == HALF and protocol is not None:
        return find(protocol).memory // 2
    try:
        return int(text)
    except ValueError:
        raise OarlockError(f"--memory {text!r}: give a number of images, or with a protocol {HALF!r}") from None


def _increment(text: str) -> int | list[int]:
    parts = text.strip("[]").split(",")
    if not all(part.strip().isdecimal() for part in parts):
        raise OarlockError(f"--increment {text!r}: give the classes per task, as 2 or as 4,2,2")
    sizes = [int(part) for part in parts]
    return sizes[0] if len(sizes) == 1 else sizes
