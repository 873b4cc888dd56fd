"""A process that plays cases one after the other and prints what came of each, a line of JSON before and after it.

    python -m fuzz.worker FOLDER FIRST LAST

The files to mutate are written to the folder first, if they are not there.
"""

import json
import random
import resource
import sys
from pathlib import Path

from fuzz.cases import play, status
from fuzz.subjects import build, subjects

ADDRESSES = 2 * 2**30  # bytes of addresses beyond those in use when the cases begin


def main(folder: Path, first: int, last: int) -> None:
    if not any(folder.iterdir()):
        build(folder)
    files = subjects(folder)
    for subject in files:  # what is imported at the first use is no case's fault
        subject.use(subject.file, random.Random(0))
    if taken := status("VmSize"):
        resource.setrlimit(resource.RLIMIT_AS, (taken + ADDRESSES,) * 2)
    for number in range(first, last):
        print(json.dumps({"began": number}), flush=True)
        print(json.dumps(play(number, files)._asdict()), flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
