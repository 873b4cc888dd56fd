"""The demo's run from the first image to the last evaluation, against reference style with the same adapters.

    python benchmarks/whole_run.py [--images 50] [--tasks 5] [--threads 2]

Both learn the bundled sample in order 1 and evaluate all test images seen so far after every task. We calibrate
thresholds and record promises besides. Prints one JSON line.
"""

from measuring import Clock, Times, new_parser, parse, report
from reference import ReferenceRow
from workloads import small_stream, test_sets

from oarlock.data.streams import Stream
from oarlock.experiments.config import RunConfig
from oarlock.experiments.evaluation import Evaluator, Record, Rows
from oarlock.experiments.metrics import aca
from oarlock.session import Session
from oarlock.tasks import PreparedTask
from oarlock.training import NoCallback, Position, run_phases

GOAL = 4
DEMO = RunConfig("sample", increment=2, order=1, options={"few": 0})


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--images", type=int, default=50, help="training images of a class; the demo has 200")
    parser.add_argument("--test", type=int, default=50, help="test images of a class")
    parser.add_argument("--tasks", type=int, default=5)
    given = parse(parser)
    assert isinstance(DEMO.increment, int) and isinstance(DEMO.order, int)
    stream = small_stream(DEMO.source, DEMO.increment, given.tasks, given.images, given.test, DEMO.order)
    clock, their_clock = Clock(), Clock()
    accuracy, lessons = ours(stream, clock)
    their_accuracy = theirs(stream, lessons, their_clock)
    times = Times(clock.seconds, their_clock.seconds)
    report(
        "whole_run",
        times.ratio,
        GOAL,
        abs(aca(accuracy) - aca(their_accuracy)),
        aca=round(aca(accuracy), 2),
        reference_aca=round(aca(their_accuracy), 2),
        images=given.images,
        **times.details(),
    )


def ours(stream: Stream, clock: Clock) -> tuple[Rows, list[PreparedTask]]:
    """The accuracy matrix, and what was learned from."""
    learner = DEMO.learner()
    session, evaluator, record, lessons = Session(learner), Evaluator(stream, learner), Record(), []
    for task in stream:
        prepared = learner.prepare_task(task.train.images, task.train.labels.tolist(), task.classes)
        with clock:
            session.learn(prepared, NoCallback())
            evaluator.after_task(record)
        lessons.append(prepared)
    return record.accuracy, lessons


def theirs(stream: Stream, lessons: list[PreparedTask], clock: Clock) -> Rows:
    learner = DEMO.learner()
    row = ReferenceRow(learner.trunk, DEMO.memory, learner.method.config)
    tests, accuracy = test_sets(stream, learner.trunk), []
    for finished, prepared in enumerate(lessons, 1):
        with clock:
            row.begin(prepared.task)
            run_phases(row.phases(prepared.task), prepared.task, NoCallback(), Position(prepared.task.index, 0, 0))
            accuracy.append(row.accuracies(tests[:finished]))
    return accuracy


if __name__ == "__main__":
    main()
