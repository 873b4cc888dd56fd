"""One run of a grid, as a process: `python -m oarlock.experiments.worker DIR`.

Its standard input is a pipe from the grid's process. A line on it asks the run to stop; the end of the pipe means
that the grid's process is gone, however it went, and a run that nobody waits for must not train on for hours.
Either way the run can be resumed.
"""

import _thread
import os
import signal
import sys
import threading
from pathlib import Path

from oarlock.allocation import keep_freed_memory
from oarlock.errors import OarlockError
from oarlock.experiments.config import saved_config
from oarlock.experiments.run import run
from oarlock.printing import complain

STOP = b"stop\n"
STOPPED, MISTAKE = 130, 2


def main() -> int:
    """Do the run in the directory that is given, and return the exit code."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell may have set it to be ignored
    threading.Thread(target=_heed, daemon=True).start()
    keep_freed_memory()
    out = Path(sys.argv[1])
    try:
        run(saved_config(out), out, resume=True)
    except OarlockError as problem:
        complain(*problem.args)
        return MISTAKE
    except KeyboardInterrupt:
        return STOPPED
    return 0


def _heed() -> None:
    if os.read(sys.stdin.fileno(), len(STOP)):
        _thread.interrupt_main()
    else:
        os._exit(STOPPED)


if __name__ == "__main__":
    sys.exit(main())
