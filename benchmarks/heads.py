"""Steps 2 and 3 of ROW's last task, on features computed once against features made anew for every batch.

    python benchmarks/heads.py [--data ../shared/data/cifar100.npz] [--images 25] [--memory 100] [--threads 2]

Ten tasks are learned quickly; then the tenth's WP head (5 epochs) and all OOD heads (10 epochs) are trained. Our time
includes computing the features. Images of a task and memory stand in the proportion of the paper's CIFAR-100. On both
sides an epoch of step 3 is the whole memory for every head, as in the paper. In the released code it is only the
head's own images, a tenth of the steps: --ood-epochs 1 has as many. Prints one JSON line.
"""

import copy
import dataclasses

import torch
from measuring import Clock, alternate, new_parser, parse, report
from reference import ReferenceRow
from torch import Tensor
from workloads import CIFAR100, learn, row_of, shortened, small_stream, test_sets

from oarlock import Learner
from oarlock.data.streams import Stream
from oarlock.methods.oar import Oar
from oarlock.nets.trunks import BUNDLED
from oarlock.training import NoCallback, Position, TaskData, run_phases

GOAL = 20
EARLIER = 4  # images of a class in the tasks before the last


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--data", default=CIFAR100)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--increment", type=int, default=10)
    parser.add_argument("--images", type=int, default=25, help="of a class of the last task")
    parser.add_argument("--test", type=int, default=2, help="images of a class")
    parser.add_argument("--memory", type=int, default=100)
    parser.add_argument("--wp-epochs", type=int, default=5)
    parser.add_argument("--ood-epochs", type=int, default=10)
    parser.add_argument("--repeats", type=int, default=1)
    given = parse(parser)
    stream = small_stream(given.data, given.increment, given.tasks, given.images, given.test)
    row, task = up_to_step_2(stream, given.memory)
    row.config = dataclasses.replace(row.config, wp_epochs=given.wp_epochs, ood_epochs=given.ood_epochs)
    trained: dict[str, Oar] = {}

    def ours(clock: Clock) -> None:
        trained["ours"] = copy.deepcopy(row)
        train_heads(trained["ours"], task, clock)

    def theirs(clock: Clock) -> None:
        trained["theirs"] = ReferenceRow.like(row)
        train_heads(trained["theirs"], task, clock)

    times = alternate(ours, theirs, given.repeats, warm_up=False)  # learning the other tasks was one
    report(
        "heads",
        times.ratio,
        GOAL,
        accuracy_difference(trained["ours"], trained["theirs"], stream),
        head_difference=largest_difference(heads(trained["ours"]), heads(trained["theirs"])),
        images=len(task.labels),
        memory=given.memory,
        **times.details(),
    )


def up_to_step_2(stream: Stream, memory: int) -> tuple[Oar, TaskData]:
    """All tasks but the last, and the last one's step 1."""
    learner = Learner(
        "oar",
        trunk=BUNDLED,
        few=0,
        memory=memory,
        calibration=0.0,
        adapt_last=None,
        epochs=1,
        wp_epochs=1,
        ood_epochs=1,
    )
    for earlier in stream[:-1]:
        learn(learner, shortened(earlier, EARLIER, EARLIER))
    last = stream[-1]
    prepared = learner.prepare_task(last.train.images, last.train.labels.tolist(), last.classes)
    learner.method.begin(prepared.task)
    step1 = learner.method.phases(prepared.task)[:1]
    run_phases(step1, prepared.task, NoCallback(), Position(prepared.task.index, 0, 0))
    return row_of(learner), prepared.task


def train_heads(row: Oar, task: TaskData, clock: Clock) -> None:
    phases = row.phases(task)[1:]
    with clock:
        run_phases(phases, task, NoCallback(), Position(task.index, 0, 0))


def heads(row: Oar) -> list[Tensor]:
    return [*row.wp_heads.parameters(), *row.ood_heads.parameters()]


def largest_difference(one: list[Tensor], other: list[Tensor]) -> float:
    return max(float((a - b).detach().abs().max()) for a, b in zip(one, other, strict=True))


@torch.no_grad()
def accuracy_difference(ours: Oar, theirs: Oar, stream: Stream) -> float:
    """On all test images; the networks below the heads are the same."""
    images, numbers = map(torch.cat, zip(*test_sets(stream, ours.trunk), strict=True))
    encoded = ours.encode(images, ours.feature_sets(len(stream)))
    right = [(row.scores(encoded).argmax(1) == numbers).double().mean() for row in (ours, theirs)]
    return 100 * abs(float(right[0] - right[1]))


if __name__ == "__main__":
    main()
