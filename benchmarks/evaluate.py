"""A stream of 20 tasks evaluated after every task: features of finished tasks kept, against everything again.

    python benchmarks/evaluate.py [--data ../shared/data/cifar100.npz] [--images 2] [--adapt-last 2] [--threads 2]

The tasks are learned quickly and not timed; both sides evaluate the same learner after each. A pass is an image
through the network of one task, or through the bare trunk. Prints one JSON line.
"""

from measuring import Clock, Times, new_parser, parse, report
from reference import ReferenceRow
from workloads import CIFAR100, learn, row_of, small_stream, test_sets

from oarlock import Learner
from oarlock.experiments.evaluation import Evaluator, Record, Rows
from oarlock.nets.trunks import BUNDLED

GOAL, PASSES_GOAL = 6, 7
TRAIN = 4  # images of a class


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--data", default=CIFAR100)
    parser.add_argument("--tasks", type=int, default=20)
    parser.add_argument("--increment", type=int, default=5)
    parser.add_argument("--images", type=int, default=2, help="test images of a class")
    parser.add_argument("--adapt-last", type=int, help="stages with adapters; all, as in the paper, if left out")
    given = parse(parser)
    stream = small_stream(given.data, given.increment, given.tasks, TRAIN, given.images)
    learner = Learner(
        "oar", trunk=BUNDLED, few=0, memory=len(stream.classes), adapt_last=given.adapt_last, epochs=1, ood_epochs=1
    )
    evaluator, record = Evaluator(stream, learner), Record()
    tests = test_sets(stream, learner.trunk)
    clock, their_clock = Clock(), Clock()
    their_accuracy: Rows = []
    their_passes = 0
    for finished, task in enumerate(stream, 1):
        learn(learner, task)
        theirs = ReferenceRow.like(row_of(learner))
        with clock:
            evaluator.after_task(record)
        with their_clock:
            their_accuracy.append(theirs.accuracies(tests[:finished]))
        their_passes += theirs.passes
    our_passes = passes(evaluator, sum(len(numbers) for _, numbers in tests))
    times = Times(clock.seconds, their_clock.seconds)
    report(
        "evaluate",
        times.ratio,
        GOAL,
        largest_difference(record.accuracy, their_accuracy),
        passes_ratio=round(their_passes / our_passes, 2),
        passes_goal=PASSES_GOAL,
        passes=our_passes,
        reference_passes=their_passes,
        **times.details(),
    )


def passes(evaluator: Evaluator, images: int) -> int:
    """The evaluator counts feature sets; all of the bare trunk are seen in one pass."""
    bare = len(evaluator.learner.method.feature_sets(0))
    return evaluator.passes - images * max(bare - 1, 0)


def largest_difference(one: Rows, other: Rows) -> float:
    pairs = [pair for rows in zip(one, other, strict=True) for pair in zip(*rows, strict=True)]
    return max(abs(a - b) for a, b in pairs)


if __name__ == "__main__":
    main()
