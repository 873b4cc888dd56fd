"""The commands that teach, inspect and verify a model file: parse, call, print."""

import json
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from oarlock.cli_parts import console, parse_options, say, saying_how_to_continue

Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The model file.")]
Weights = Annotated[str | None, typer.Option(help="A local file with the trunk's weights, if the model lacks them.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, mps.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]


def learn(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The model file; created if there is none.")],
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Images of new classes: FOLDER/<class>/*.")],
    only: Annotated[list[str] | None, typer.Option(help="Of the folder's classes only these: a,b,c.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Refuse known classes in place of skipping them.")] = False,
    memory: Annotated[
        int | None, typer.Option(help="Images kept for replay: 200; of an existing model, a larger number.")
    ] = None,
    epochs: Annotated[int | None, typer.Option(help="Epochs of training, for this and later tasks.")] = None,
    method: Annotated[str | None, typer.Option(help="Of a new model: the method, row if not given.")] = None,
    trunk: Annotated[str | None, typer.Option(help="Of a new model: vit_pico, efficientnet_lite0, …")] = None,
    seed: Annotated[int | None, typer.Option(help="Of a new model: the seed of every random choice.")] = None,
    options: Annotated[
        list[str] | None, typer.Option("--set", help="Of a new model: an option of the method, key=value.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="A local file with the trunk's weights.")] = None,
    device: Device = "cpu",
    threads: Annotated[int | None, typer.Option(help="CPU threads; part of what makes results repeatable.")] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Forget learning that was interrupted.")] = False,
    as_json: AsJson = False,
) -> None:
    """Create a model, or teach it the new classes of a folder as its next task; again, to go on after Ctrl-C."""
    from oarlock.model.places import places

    news = Console(stderr=True, soft_wrap=True) if as_json else console
    again = [argument for argument in sys.argv[1:] if argument != "--fresh"]

    def notice(text: str) -> None:
        news.print(text, markup=False, highlight=False)

    with saying_how_to_continue(places(model).checkpoint, *again):
        from oarlock.model.learning import learn as teach
        from oarlock.model.settings import Settings
        from oarlock.model.terminal import print_outcome
        from oarlock.progress import RunDisplay

        settings = Settings(
            method=method,
            trunk=trunk,
            weights=weights,
            memory=memory,
            epochs=epochs,
            seed=seed,
            options=parse_options(options or []),
            device=device,
            threads=threads,
        )
        with _warnings_as(notice), RunDisplay(news) as display:
            outcome = teach(model, folder, settings, display, notice, only=only or (), strict=strict, fresh=fresh)
    if as_json:
        print(json.dumps(outcome.to_json()))
    else:
        print_outcome(outcome, console)


def inspect(model: Model, weights: Weights = None, as_json: AsJson = False) -> None:
    """What a model file holds: classes, images, memory, free capacity, trunk, sizes."""
    from oarlock.model.inspection import inspect as facts_of
    from oarlock.model.terminal import print_inspection

    facts = facts_of(model, weights)
    if as_json:
        print(json.dumps(facts))
    else:
        print_inspection(facts, console)


def export(
    model: Model,
    onnx: Annotated[Path, typer.Option(metavar="FILE", help="The file to write, such as shop.onnx.")],
    weights: Weights = None,
    as_json: AsJson = False,
) -> None:
    """Write a model as an ONNX graph, for programs without torch: pixels in, log-probabilities and a score out."""
    from oarlock.learner import load
    from oarlock.model.export import export_onnx
    from oarlock.report.wording import printable

    written = export_onnx(load(model, weights=weights), onnx)
    if as_json:
        print(json.dumps({**written._asdict(), "path": str(onnx)}))
    else:
        say(
            f"{printable(onnx)}: {written.bytes / 1e6:.1f} MB; answers to {written.images} images compared with "
            f"torch's, largest difference {written.difference:.1g}"
        )


def verify(model: Model, weights: Weights = None, device: Device = "cpu", as_json: AsJson = False) -> None:
    """Ask finished tasks again what they were asked when they were learned; exit code 1 if an answer changed."""
    from oarlock.model.terminal import print_verification
    from oarlock.model.verification import verify as check

    verification = check(model, weights=weights, device=device)
    if as_json:
        print(json.dumps(verification.to_json()))
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
