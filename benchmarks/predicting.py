"""What predict_10 and predict_20 share: a stream is learned, then its test images are asked about with all tasks and
with a shortlist."""

import torch
from measuring import Clock, Side, alternate, new_parser, parse, report
from torch import Tensor
from workloads import CIFAR100, learn, row_of, small_stream, test_sets

from oarlock import Learner
from oarlock.nets.adapters import CHUNK
from oarlock.nets.trunks import BUNDLED
from oarlock.prediction import FastPredictor, Predictor, ShortlistPredictor, smallest_shortlist


def measure(name: str, description: str | None, tasks: int, goal: float) -> None:
    parser = new_parser(description)
    parser.add_argument("--data", default=CIFAR100)
    parser.add_argument("--tasks", type=int, default=tasks)
    parser.add_argument("--increment", type=int, default=100 // tasks, help="classes of a task")
    parser.add_argument("--train", type=int, default=30, help="training images of a class")
    parser.add_argument("--images", type=int, default=10, help="test images of a class")
    parser.add_argument("--timed", type=int, default=128, help="of these images are timed")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--shortlist", type=int, help="auto, if left out")
    parser.add_argument("--adapt-last", type=int, help="stages with adapters; all, as in the paper, if left out")
    parser.add_argument("--repeats", type=int, default=3)
    given = parse(parser)
    stream = small_stream(given.data, given.increment, given.tasks, given.train, given.images, order=1)
    learner = Learner(
        "oar", trunk=BUNDLED, few=0, memory=5 * len(stream.classes), adapt_last=given.adapt_last, epochs=given.epochs
    )
    for task in stream:
        learn(learner, task)
    images, truth = map(torch.cat, zip(*test_sets(stream, learner.trunk), strict=True))
    shuffled = torch.randperm(len(images), generator=torch.Generator().manual_seed(0))
    images, truth = images[shuffled], truth[shuffled]

    row = row_of(learner)
    with torch.no_grad():
        shortlist = given.shortlist or smallest_shortlist(row, learner.calibration)
    every = FastPredictor(row, row.protector, given.tasks)
    some = ShortlistPredictor(row, row.protector, given.tasks, shortlist)
    answers, fewer = ask(every, images), ask(some, images)
    timed = images[: given.timed]
    times = alternate(timing(some, timed), timing(every, timed), given.repeats)
    accuracy, with_shortlist = (100 * float((found == truth).double().mean()) for found in (answers, fewer))
    report(
        name,
        times.ratio,
        goal,
        round(with_shortlist - accuracy, 2),
        tasks=given.tasks,
        shortlist=shortlist,
        adapt_last=given.adapt_last,
        accuracy=round(accuracy, 2),
        answers_kept=round(100 * float((answers == fewer).double().mean()), 2),
        images=len(images),
        ms_per_image={"all": to_ms(times.theirs, timed), "shortlist": to_ms(times.ours, timed)},
    )


def ask(predictor: Predictor, images: Tensor) -> Tensor:
    return torch.cat([predictor.predict_scores(chunk).scores.argmax(1) for chunk in images.split(CHUNK)])


def timing(predictor: Predictor, images: Tensor) -> Side:
    def side(clock: Clock) -> None:
        with clock:
            ask(predictor, images)

    return side


def to_ms(seconds: float, images: Tensor) -> float:
    return round(1000 * seconds / len(images), 3)
