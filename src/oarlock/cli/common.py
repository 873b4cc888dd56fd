"""What the commands share: reading options, printing, and what is said after Ctrl-C."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from oarlock.errors import OarlockError, printable
from oarlock.printing import say

UsageError: Any = typer.BadParameter.__base__  # wherever typer keeps it


class Commands(TyperGroup):
    """List commands by name, whichever module they are from, and let Ctrl-C end each of them without a word: what was
    printed stands there, and what was not finished has changed nothing."""

    def list_commands(self, ctx: Any) -> list[str]:
        return sorted(super().list_commands(ctx))

    def get_params(self, ctx: Any) -> list[Any]:
        params: list[Any] = super().get_params(ctx)
        for param in params:  # typer's own, which are needed once: docs/how-to/completion.md
            if param.name in ("install_completion", "show_completion"):
                param.hidden = True
        return params

    def make_context(self, *arguments: Any, **options: Any) -> Any:
        with _printable_mistakes():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: Any) -> Any:
        try:
            with _printable_mistakes():
                return super().invoke(ctx)
        except KeyboardInterrupt:
            raise SystemExit(130) from None


@contextmanager
def _printable_mistakes() -> Iterator[None]:
    """A shell may have put a file name where an option is looked for."""
    try:
        yield
    except UsageError as mistake:
        mistake.message = printable(mistake.message)
        raise


app = typer.Typer(
    help="Class-incremental learning that does not forget and that says when it meets something new.",
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
command = app.command

AsJson = Annotated[bool, typer.Option("--json", help="One JSON object.")]
AsJsonLines = Annotated[bool, typer.Option("--json", help="One JSON object per line.")]
Protector = Annotated[str | None, typer.Option(help="What keeps tasks apart: hat, … (oarlock protectors).")]
Detector = Annotated[str | None, typer.Option(help="What tells unknown inputs: own, energy, … (oarlock detectors).")]
Size = Annotated[
    int | None,
    typer.Option(help="Pixels along a side of what the trunk sees; as suits the first images if not given."),
]
Model = Annotated[Path, typer.Argument(metavar="MODEL", help="The model file.")]
Weights = Annotated[str | None, typer.Option(help="A local file with the trunk's weights, if the model lacks them.")]
Device = Annotated[str, typer.Option(help="cpu, cuda, mps.")]
KeepPrevious = Annotated[
    bool, typer.Option("--keep-previous", help="Keep the model as it was, beside the new one, for `oarlock undo`.")
]
On = Annotated[
    str | None,
    typer.Option("--on", help="Where to work: ray, for this machine; or a cluster: ray://auto, ray://ADDRESS."),
]
Track = Annotated[
    list[str] | None, typer.Option("--track", help="Log to tensorboard, mlflow or wandb as well; may be repeated.")
]
Set = Annotated[list[str] | None, typer.Option("--set", help="An option of the method: key=value.")]


def given(context: typer.Context) -> set[str]:
    """Return the options that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def parse_options(texts: list[str]) -> dict[str, str]:
    """Return options by name, from texts such as key=value.

    >>> parse_options(["lr=0.1", "width=8"])
    {'lr': '0.1', 'width': '8'}
    """
    pairs = [text.partition("=") for text in texts]
    for key, equals, _ in pairs:
        if not equals:
            raise OarlockError(f"--set {key!r}: write key=value")
    return {key: value for key, _, value in pairs}


def chosen_options(texts: list[str] | None, **sockets: str | None) -> dict[str, str]:
    """Return the options of a method: those of `--set`, and what was put into its sockets.

    >>> chosen_options(["lr=0.1"], protector="hat", detector=None)
    {'lr': '0.1', 'protector': 'hat'}
    """
    return parse_options(texts or []) | {name: value for name, value in sockets.items() if value is not None}


@contextmanager
def saying_how_to_continue(started: Path, *command: object) -> Iterator[None]:
    """Say after Ctrl-C, which is no error, by which command to resume, where a file tells that work was started."""
    try:
        yield
    except KeyboardInterrupt:
        how = f"; continue with: {shlex.join(map(str, ('oarlock', *command)))}"
        say("stopped" + (how if started.exists() else ""))
        raise SystemExit(130) from None
