"""The command line: parses, calls, prints. Every module of this package adds its commands by the decorator
`command`; adding one is one new file and no edit."""

import importlib
import pkgutil
import sys

from oarlock.allocation import keep_freed_memory
from oarlock.cli.common import app
from oarlock.errors import NotFittedError, OarlockError, printable

for module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{module.name}")


def main() -> None:
    """Run the command line: a user's mistake is one line and exit code 2."""
    keep_freed_memory()
    try:
        app()
    except (OarlockError, NotFittedError) as problem:
        print(f"oarlock: {printable(problem)}", file=sys.stderr)
        raise SystemExit(2) from None
    except OSError as problem:  # a path that the operating system refuses, wherever it is looked at first
        if problem.filename is None:
            raise
        print(f"oarlock: {problem.filename}: {problem.strerror}", file=sys.stderr)
        raise SystemExit(2) from None
