"""What the k-th small task costs, without learning those before it: a JSON line for each k.

    python benchmarks/late_task.py [--after 10,25,50,100] [--classes 2] [--images 80] [--asked 32] [--shortlist 3]
                                   [--memory 2] [--threads 1]

The tasks before are simulated: gates drawn at random, as those of small tasks almost are, with the wings that come of
it; Gaussians and features of random numbers; a memory (--memory images of a class, at least 200) and calibration
images as many as there would be. The next task is then learned in earnest, on random images, and its CPU seconds are
told by part; milliseconds are of an image asked in batches of --asked, and `ms_one` of an image that comes alone.
"""

import json
import time
import warnings

import torch
from learn_cost import Stopwatch
from many_tasks import answered, megabytes, milliseconds, predictor_of
from measuring import new_parser, parse
from torch import Tensor
from workloads import row_of

from oarlock import Learner
from oarlock.memory import EncodedImages
from oarlock.methods.oar import Oar
from oarlock.nets.trunks import BUNDLED
from oarlock.prediction import Speed
from oarlock.tasks import FinishedTask, calibration_limit
from oarlock.training import TaskData

SPARED = 0.1  # of the images of a class for calibration
LEAST = 200  # images of the memory


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--after", default="10,25,50,100", help="the last of the tasks that are simulated")
    parser.add_argument("--classes", type=int, default=2, help="of a task")
    parser.add_argument("--images", type=int, default=80, help="of a class")
    parser.add_argument("--asked", type=int, default=32)
    parser.add_argument("--shortlist", type=int, default=3)
    parser.add_argument("--memory", type=int, default=2, help="images of a class")
    given = parse(parser)
    warnings.simplefilter("ignore")
    for count in map(int, given.after.split(",")):
        classes = given.classes * (count + 1)
        learner = Learner("oar", trunk=BUNDLED, few=0, memory=max(LEAST, given.memory * classes))
        simulate(learner, count, given.classes, given.images)
        images = pictures(given.asked)
        line = {"name": "late_task", "after": count, "wings": sum(learner.method.capacity().wings)}
        line |= answered(learner, images, given.shortlist)
        line["ms_one"] = milliseconds(predictor_of(learner, Speed(given.shortlist)), images[:1])
        line["mb"] = megabytes(learner)
        print(json.dumps({**line, **learned(learner, given.classes, given.images)}), flush=True)


@torch.no_grad()
def simulate(learner: Learner, tasks: int, classes: int, images: int) -> None:
    row = row_of(learner)
    for index in range(tasks):
        simulate_task(row, index, classes, images)
        names = [f"{index}-{number}" for number in range(classes)]
        learner._tasks.append(FinishedTask(names, [images] * classes, None, None))
    learner.tell_columns()
    learned = tasks * classes
    fill(row.memory, row, row.budget // learned, learned)
    spared = min(int(SPARED * images), calibration_limit(classes * images) // learned)
    fill(learner.calibration, row, spared, learned)


def simulate_task(row: Oar, index: int, classes: int, images: int) -> None:
    labels = torch.arange(classes * images) % classes
    row.begin(TaskData(index, pictures(1), labels, classes, seed=0))
    row.protector.finish_task()
    row.gaussians[index].fit(torch.randn(len(labels), row.trunk.dim), labels)
    row.trunk_gaussians.add(
        torch.randn(2 * classes, row.trunk.bare_dim), torch.arange(2 * classes) % classes, classes
    )


def fill(store: EncodedImages, row: Oar, each: int, classes: int) -> None:
    labels = torch.arange(classes).repeat_interleave(each)
    sets = len(row.feature_sets(len(row.classes_per_task)))
    store.add_images(pictures(len(labels)), labels, torch.randn(len(labels), sets, row.trunk.dim))


def pictures(count: int) -> Tensor:
    return torch.randint(0, 256, (count, 3, 32, 32), dtype=torch.uint8)


def learned(learner: Learner, classes: int, images: int) -> dict[str, object]:
    labels, stopwatch = [f"new-{number % classes}" for number in range(classes * images)], Stopwatch()
    begun = time.process_time()
    learner.learn(pictures(len(labels)).permute(0, 2, 3, 1).numpy(), labels, callback=stopwatch)
    seconds = time.process_time() - begun
    stopwatch.turn_to("")
    parts = {name: round(value, 2) for name, value in stopwatch.parts.items()}
    return {"seconds": round(seconds, 2), "parts": parts}


if __name__ == "__main__":
    main()
