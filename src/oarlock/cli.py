"""The command line: parses, calls, prints."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from oarlock.allocation import keep_freed_memory
from oarlock.bench.commands import bench, plot, table
from oarlock.cli_parts import console, given, parse_options, say, saying_how_to_continue
from oarlock.errors import NotFittedError, OarlockError
from oarlock.model.commands import export, inspect, learn, verify
from oarlock.model.predict_commands import predict, unknowns
from oarlock.theory.commands import theory

app = typer.Typer(
    help="Class-incremental learning that does not forget and that says when it meets something new.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    add_completion=False,
)

Out = Annotated[Path | None, typer.Option("--out", help="Directory of the run; a new one under runs/ if not given.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]


@app.command()
def demo(out: Out = None) -> None:
    """Learn the bundled sample (ten classes, five tasks), reject what was never learned, write a report."""
    from oarlock.runs import RunConfig

    console.print("Ten kinds of photographs, learned two at a time; ten other kinds are never learned.")
    _run(RunConfig("sample", increment=2, order=1), out or _free_directory("demo"), resume=False)


@app.command()
def run(
    context: typer.Context,
    source: Annotated[
        str | None,
        typer.Argument(help="'sample', an .npz file, a folder of classes, cifar10, cifar100, …"),
    ] = None,
    protocol: Annotated[
        str | None, typer.Option(help="In place of a source: c10-5t, c10-5t-mini, … (docs/protocols.md).")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Where the protocol's data lies; downloaded if not given.")] = None,
    partial: Annotated[
        bool, typer.Option("--partial", help="Accept data with fewer images than the protocol asks for.")
    ] = False,
    method: Annotated[
        str, typer.Option(help="The method; or row,slda,hat, or all: one run each, and a comparison.")
    ] = "row",
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
        typer.Option(help="vit_pico, efficientnet_lite0, or a timm ViT; the protocol's if there is one."),
    ] = None,
    weights: Annotated[str | None, typer.Option(help="A local file with the trunk's weights.")] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda, mps.")] = "cpu",
    threads: Annotated[int | None, typer.Option(help="CPU threads; part of what makes a run repeatable.")] = None,
    options: Annotated[list[str] | None, typer.Option("--set", help="An option of the method: key=value.")] = None,
    out: Out = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")] = False,
) -> None:
    """Learn a stream of tasks and measure after each."""
    from oarlock import several
    from oarlock.runs import RunConfig, saved_config

    if source is None and protocol is None:
        if not resume or out is None:
            raise OarlockError(
                "say what to learn: 'sample', an .npz file, a folder, --protocol NAME (or --resume --out DIR)"
            )
        if others := given(context) - {"out", "resume"}:
            raise OarlockError(f"a resumed run keeps its settings: leave out {', '.join(sorted(others))}")
        if several.holds_several(out):
            _run_several(several.saved_configs(out), out, resume)
        else:
            _run(saved_config(out), out, resume)
        return
    chosen = {
        "increment": None if increment is None else _increment(increment),
        "memory": _memory(memory, protocol),
        "calibration": calibration,
        "trunk": trunk,
        "threads": threads,
    }
    config: dict[str, Any] = {
        **_source_settings(source, protocol, data, partial),
        **{name: value for name, value in chosen.items() if value is not None},
        "method": method,
        "order": int(order) if order.isdecimal() else order.split(","),
        "validation": validation,
        "seed": seed,
        "weights": None if weights is None else str(Path(weights).resolve()),
        "device": device,
        "options": parse_options(options or []),
    }
    if several.is_several(method):
        configs = several.expand(RunConfig(**config))
        name = method if method == several.ALL else "+".join(config.method for config in configs)
        _run_several(configs, out or _free_directory(name), resume)
    else:
        _run(RunConfig(**config), out or _free_directory(method), resume)


@app.command()
def report(directory: Annotated[Path, typer.Argument(help="The directory of a finished run.")]) -> None:
    """Write the report page of a finished run again, and print its numbers."""
    from oarlock.files import read_json
    from oarlock.report.page import write_report
    from oarlock.report.tables import print_summary

    page = write_report(directory)
    print_summary(read_json(directory / "result.json"), console)
    say(f"report: {page}")


@app.command()
def compare(
    directories: Annotated[list[Path], typer.Argument(help="Finished runs, or directories that hold them.")],
    out: Annotated[
        Path | None, typer.Option(help="Where to write; the directory if one is given, else the current one.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Set finished runs side by side, averaged over class orders and seeds: compare.html and compare.md."""
    from oarlock.report.comparison import compare as compare_runs

    _compare(compare_runs(directories), out or (directories[0] if len(directories) == 1 else Path()), as_json)


@app.command("methods")
def list_methods(as_json: AsJson = False) -> None:
    """The methods there are."""
    from rich.table import Table

    from oarlock.methods import registered

    table = Table("method", "what it does", "paper", "memory", "gated", "verified", box=None)
    for name, cls in sorted(registered().items()):
        what = (cls.__doc__ or "").splitlines()[0]
        memory, gated = cls.needs_memory, cls.gated
        if as_json:
            facts = {"method": name, "what": what, "paper": cls.paper, "memory": memory, "gated": gated}
            print(json.dumps(facts | {"verified": cls.verified}, ensure_ascii=False))
        else:
            table.add_row(name, what, cls.paper, *("yes" if fact else "" for fact in (memory, gated, cls.verified)))
    if not as_json:
        console.print(table)
        console.print("What each was verified against: oarlock methods --json, or docs/methods.md.")


@app.command("sizes")
def list_sizes(
    protocol: Annotated[list[str] | None, typer.Option(help="One of the paper's protocols, such as c10-5t.")] = None,
    as_json: AsJson = False,
) -> None:
    """The paper's table of model sizes, counted on the real modules (DeiT-S/16; no weights are needed)."""
    from rich.table import Table

    from oarlock.protocols import PAPER
    from oarlock.sizes import sizes

    names = protocol or list(PAPER)
    if unknown := [name for name in names if name not in PAPER]:
        raise OarlockError(f"the paper has no protocol {unknown[0]!r}; its protocols: {', '.join(PAPER)}")
    cells = sizes(names)
    if as_json:
        for cell in cells:
            print(json.dumps({**cell._asdict(), "difference": cell.difference, "why": cell.why}, ensure_ascii=False))
        return
    table = Table("method", *names, box=None, padding=(0, 1, 0, 0))
    for name in dict.fromkeys(cell.method for cell in cells):
        row = [cell for cell in cells if cell.method == name]
        table.add_row(name, *(_size(cell.ours, cell.paper) for cell in row))
    console.print("Million entries without images; below, the paper's number and the difference")
    console.print(table)
    for name, why in {cell.method: cell.why for cell in cells if cell.why}.items():
        say(f"* {name}: {why}")


def _size(ours: float, paper: float | None) -> str:
    from oarlock.sizes import NEAR

    if paper is None:
        return f"{ours:.2f}"
    return f"{ours:.2f}\n{paper:.1f}  {ours - paper:+.2f}{'*' if abs(ours - paper) > NEAR else ''}"


def _run(config: Any, out: Path, resume: bool) -> None:
    from oarlock.progress import RunDisplay
    from oarlock.report.page import write_report
    from oarlock.report.tables import print_summary
    from oarlock.runs import run as do_run

    with saying_how_to_continue(out / "config.json", "run", "--resume", "--out", out), RunDisplay(console) as display:
        result = do_run(config, out, resume=resume, display=display)
    page = write_report(out)
    say(f"model:  {out / 'model.oar'}\nreport: {page}\n")
    print_summary(result, console)


def _run_several(configs: list[Any], out: Path, resume: bool) -> None:
    from oarlock.progress import RunDisplay
    from oarlock.report.comparison import compare as compare_runs
    from oarlock.several import run_several

    with saying_how_to_continue(out / "runs.json", "run", "--resume", "--out", out), RunDisplay(console) as display:
        directories = run_several(configs, out, resume=resume, display=display)
    _compare(compare_runs(directories), out)


def _compare(comparison: Any, out: Path, as_json: bool = False) -> None:
    from oarlock.report.comparison import print_comparison, write_comparison

    page = write_comparison(comparison, out)
    if not as_json:
        say(f"comparison: {page}\n")
        print_comparison(comparison, console)
        return
    for warning in comparison.warnings:
        print(f"oarlock: {warning}", file=sys.stderr)
    for method in comparison.methods:
        print(json.dumps(method.to_json()))


def _free_directory(name: str) -> Path:
    number = 1
    while (out := Path("runs") / (name if number == 1 else f"{name}-{number}")).exists():
        number += 1
    return out


def _source_settings(source: str | None, protocol: str | None, data: str | None, partial: bool) -> dict[str, Any]:
    from oarlock.data.named import DATA_SETS
    from oarlock.protocols import run_settings

    if protocol is not None:
        if source is not None:
            raise OarlockError(f"{source!r}: a protocol has its own data; say where it lies with --data PATH")
        return run_settings(protocol, data=data, partial=partial)
    if data is not None or partial:
        raise OarlockError(f"{'--partial' if data is None else '--data'} goes with --protocol NAME")
    named = source == "sample" or source in DATA_SETS
    return {"source": source if named else str(Path(str(source)).resolve())}


def _memory(text: str | None, protocol: str | None) -> int | None:
    from oarlock.protocols import HALF, find

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


for command in (learn, predict, unknowns, inspect, verify, export, bench, table, plot, theory):
    app.command()(command)


def main() -> None:
    """Entry point: a user's mistake is one line and exit code 2."""
    keep_freed_memory()
    try:
        app()
    except (OarlockError, NotFittedError) as problem:
        print(f"oarlock: {problem}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as problem:  # a path that the operating system refuses, wherever it is looked at first
        if problem.filename is None:
            raise
        print(f"oarlock: {problem.filename}: {problem.strerror}", file=sys.stderr)
        raise SystemExit(2) from None
