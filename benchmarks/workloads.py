"""What benchmarks learn: small parts of streams, and trunks of any size."""

from dataclasses import replace

import timm
import torch

from oarlock.data.images import prepare
from oarlock.data.sources import open_source
from oarlock.data.streams import Stream, Task
from oarlock.learner import Learner
from oarlock.methods.oar import Oar
from oarlock.nets.trunks import BUNDLED, Trunk, load_trunk
from oarlock.nets.trunks._timm import timm_card
from oarlock.nets.trunks.vit import Transformer
from oarlock.session import Session
from oarlock.training import NoCallback

CIFAR100 = "../shared/data/cifar100.npz"


def small_stream(data: str, increment: int, tasks: int, train: int, test: int, order: int = 0) -> Stream:
    """The first tasks of a stream with so many images of each class."""
    stream = Stream.from_source(open_source(data), increment, order)[:tasks]
    return replace(stream, tasks=tuple(shortened(task, train, test) for task in stream))


def shortened(task: Task, train: int, test: int) -> Task:
    return replace(task, train=task.train.at_most(train), test=task.test.at_most(test))


def row_of(learner: Learner) -> Oar:
    assert isinstance(learner.method, Oar)
    return learner.method


def learn(learner: Learner, task: Task) -> None:
    """`Learner.learn` without its draft."""
    prepared = learner.prepare_task(task.train.images, task.train.labels.tolist(), task.classes)
    Session(learner).learn(prepared, NoCallback())


def test_sets(stream: Stream, trunk: Trunk) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Every task's test images as the trunk sees them, and the numbers of their classes."""
    number = {name: index for index, name in enumerate(stream.classes)}
    return [
        (
            prepare(task.test.images, trunk.card.preprocessing),
            torch.tensor([number[name] for name in task.test.labels.tolist()]),
        )
        for task in stream
    ]


def any_trunk(name: str) -> Trunk:
    """The bundled trunk, or one of timm's with random weights: time does not depend on them."""
    if name == BUNDLED:
        return load_trunk(name)
    torch.manual_seed(0)
    model = timm.create_model(name, pretrained=False, num_classes=0)
    return Transformer(model, timm_card(model, name, source="random"))
