"""What the commands share: reading options, printing, and what is said after Ctrl-C."""

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer
from rich.console import Console

from oarlock.errors import OarlockError

console = Console(soft_wrap=True)


def say(text: str) -> None:
    """Print as it is: a path may hold what rich takes for markup."""
    console.print(text, markup=False, highlight=False)


def given(context: typer.Context) -> set[str]:
    """The options that stand on the command line."""
    sources = {name: context.get_parameter_source(name) for name in context.params}
    return {name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"}


def parse_options(texts: list[str]) -> dict[str, str]:
    """
    >>> parse_options(["lr=0.1", "width=8"])
    {'lr': '0.1', 'width': '8'}
    """
    pairs = [text.partition("=") for text in texts]
    for key, equals, _ in pairs:
        if not equals:
            raise OarlockError(f"--set {key!r}: write key=value")
    return {key: value for key, _, value in pairs}


@contextmanager
def saying_how_to_continue(started: Path, *command: object) -> Iterator[None]:
    """Ctrl-C is no error: what was started, as a file tells, is resumed by a command."""
    try:
        yield
    except KeyboardInterrupt:
        how = f"; continue with: {shlex.join(map(str, ('oarlock', *command)))}"
        say("stopped" + (how if started.exists() else ""))
        raise SystemExit(130) from None
