"""The commands that correct a model file: parse, call, print."""

from typing import TYPE_CHECKING, Annotated

import typer

from oarlock.cli.common import AsJson, Device, KeepPrevious, Model, Weights, command
from oarlock.printing import console, put_json

if TYPE_CHECKING:
    from oarlock.modelfile.edit import Corrected


@command()
def rename(
    model: Model,
    old: Annotated[str, typer.Argument(metavar="OLD", help="The class, as it is called now.")],
    new: Annotated[str, typer.Argument(metavar="NEW", help="Its new name, which no class has.")],
    keep_previous: KeepPrevious = False,
    weights: Weights = None,
    as_json: AsJson = False,
) -> None:
    """Call a class of a model by another name."""
    from oarlock.modelfile import edit

    _show(edit.rename(model, old, new, weights=weights, keep_previous=keep_previous), as_json)


@command()
def merge(
    model: Model,
    kept: Annotated[str, typer.Argument(metavar="KEPT", help="The class whose name stays.")],
    other: Annotated[str, typer.Argument(metavar="OTHER", help="The class that becomes part of it.")],
    keep_previous: KeepPrevious = False,
    weights: Weights = None,
    as_json: AsJson = False,
) -> None:
    """Make one class of two of a model's classes."""
    from oarlock.modelfile import edit

    _show(edit.merge(model, kept, other, weights=weights, keep_previous=keep_previous), as_json)


@command()
def forget(
    model: Model,
    label: Annotated[str, typer.Argument(metavar="CLASS", help="The class to be removed.")],
    keep_previous: Annotated[
        bool,
        typer.Option("--keep-previous", help="Keep the model as it was, which has the class, for `oarlock undo`."),
    ] = False,
    weights: Weights = None,
    device: Device = "cpu",
    as_json: AsJson = False,
) -> None:
    """Remove a class: its photos, its statistics, its answers. A model kept for `oarlock undo` is removed as well."""
    from oarlock.modelfile import edit

    _show(edit.forget(model, label, weights=weights, device=device, keep_previous=keep_previous), as_json)


@command()
def undo(model: Model, as_json: AsJson = False) -> None:
    """Put a model back to what it was before its last lesson or correction, if that was kept: --keep-previous."""
    from oarlock.modelfile import edit

    _show(edit.undo(model), as_json)


def _show(corrected: "Corrected", as_json: bool) -> None:
    from oarlock.report.model_terminal import print_correction

    if as_json:
        put_json(corrected.to_json())
    else:
        print_correction(corrected, console)
