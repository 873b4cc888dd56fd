"""Does commands in processes that have imported everything already, and sends one of them a signal at its n-th change
to the files of a folder, or a moment later: `python forked.py`, with an order in JSON on every line of its input.

A process of its own that has no other threads forks; what it forks hears Ctrl-C as in a terminal.
"""

import importlib
import json
import os
import signal
import sys
import threading
import traceback
from typing import Any

WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"}


def main() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # whoever orders has it too
    prepare()
    for line in sys.stdin:
        order = json.loads(line)
        child = os.fork()
        if not child:
            obey(**order)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def prepare() -> None:
    """Import what commands import when they need it."""
    import torch

    from oarlock import session

    for name in (
        *("matplotlib.backends.backend_agg", "sklearn.cluster", "oarlock.cli", "oarlock.report.progress"),
        *("oarlock.experiments.series", "oarlock.modelfile.export", "oarlock.modelfile.learn"),
        "oarlock.modelfile.edit",
        *("oarlock.modelfile.unknowns", "oarlock.report.comparison_page", "oarlock.report.run_page"),
    ):
        importlib.import_module(name)
    torch.set_num_threads(1)
    session.CHECKPOINT_SECONDS = 0.0


def obey(arguments: list[str], folder: str, log: str, number: int, moment: int, delay: float) -> None:
    """Do a command, and write the number of changes to the folder beside its output."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    changes, myself = 0, os.getpid()

    def look(event: str, facts: tuple[Any, ...]) -> None:
        nonlocal changes
        writes = event in CHANGES or (event == "open" and (facts[2] or 0) & WRITING)
        if not (writes and any(str(fact).startswith(folder) for fact in facts[:2])):
            return
        if changes == moment and delay:
            threading.Timer(delay, os.kill, (myself, number)).start()
        elif changes == moment:
            os.kill(myself, number)
        changes += 1

    sys.addaudithook(look)
    sys.argv = ["oarlock", *arguments]
    code: Any = 1
    try:
        from oarlock.cli import main as command

        command()
        code = 0
    except SystemExit as end:
        code = end.code or 0
    except BaseException:
        traceback.print_exc()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(output, f"\n{changes} changes".encode())
    os._exit(code)


if __name__ == "__main__":
    main()
