"""The command line: parses, calls, prints. Every module of this package adds its commands by the decorator
`command`; adding one is one new file and no edit."""

import sys

try:
    import errno
    import importlib
    import os
    import pkgutil
    import warnings

    from oarlock import errors
    from oarlock.allocation import keep_freed_memory
    from oarlock.cli.common import app
    from oarlock.printing import complain

    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
except KeyboardInterrupt:
    sys.exit(130)


def main() -> None:
    """Run the command line: a user's mistake is a line, or one for each, and exit code 2."""
    keep_freed_memory()
    try:
        with warnings.catch_warnings():
            warnings.showwarning = lambda message, *_, **__: complain(f"note: {message}")
            try:
                app()
            finally:
                sys.stdout.flush()
    except (errors.OarlockError, errors.NotFittedError) as problem:
        complain(*problem.args)
        raise SystemExit(2) from None
    except OSError as problem:  # a path that the operating system refuses, wherever it is looked at first
        where = problem.filename
        if where is None and problem.errno == errno.ENOSPC:  # files say themselves that they could not be written
            where = "standard output"
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # which Python flushes once more
        if where is None:
            raise
        complain(f"{where}: {problem.strerror}")
        raise SystemExit(2) from None
