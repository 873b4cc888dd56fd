"""What learning in closed form costs, in passes of the bare trunk over the same photographs: one JSON line for each
method.

    python benchmarks/closed_forms.py [--methods ranpac,klda] [--trunk efficientnet_lite0] [--size 224] [--classes 10]
                                      [--images 30] [--repeats 3] [--set random_features=5000] [--threads 1]

A task of noise is learned, and another after it, by `Learner.learn`, solving included; `passes` is the second's
time over that of encoding its images alone, in turns, the median of both. `megabytes` is the file without its
trunk. Seconds are the process's CPU time, which other work on the machine disturbs less than the clock.
"""

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable

import numpy as np
import torch

from oarlock import Learner
from oarlock.cli.common import parse_options
from oarlock.data.images import prepare
from oarlock.methods import config_class, methods
from oarlock.methods._closed_form import ClosedFormMethod
from oarlock.nets.trunks import load_trunk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    closed = sorted(name for name, cls in methods.all().items() if issubclass(cls, ClosedFormMethod))
    parser.add_argument("--methods", default=",".join(closed))
    parser.add_argument("--trunk", default="efficientnet_lite0")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--images", type=int, default=30, help="of each class")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    trunk = load_trunk(given.trunk, size=given.size)
    shape = (given.classes * given.images, given.size, given.size, 3)
    first, second = np.random.default_rng(0).integers(0, 256, (2, *shape), dtype=np.uint8)
    names = [f"class {number}" for number in range(2 * given.classes) for _ in range(given.images)]
    prepared, rest = prepare(second, trunk.card.preprocessing), names[len(second) :]
    bare = Learner("ncm", trunk=trunk).method
    for name in given.methods.split(","):
        known = config_class(methods.find(name)).__dataclass_fields__
        options = {key: value for key, value in parse_options(given.set).items() if key in known}
        learner = Learner(name, trunk=trunk, calibration=0.0, **options)
        learner.learn(first, names[: len(first)])
        learning, passing = [], []
        for _ in range(given.repeats):
            another = copy.deepcopy(learner)
            learning.append(seconds(lambda another=another: another.learn(second, rest)))
            passing.append(seconds(lambda: bare.encode(prepared, [-1])))
        kept = sum(value.nbytes for value in another.method.state_dict().values())
        line = {
            "method": name,
            "options": options,
            "passes": statistics.median(learning) / statistics.median(passing),
        }
        line |= {"pass": statistics.median(passing), "megabytes": kept / 1e6}
        print(
            json.dumps({key: round(value, 3) if isinstance(value, float) else value for key, value in line.items()})
        )


def seconds(work: Callable[[], object]) -> float:
    started = time.process_time()
    work()
    return time.process_time() - started


if __name__ == "__main__":
    main()
