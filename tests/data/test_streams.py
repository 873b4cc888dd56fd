import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import oarlock.data.streams as streams
from oarlock.data.sources import Labelled, Source
from oarlock.data.streams import Stream, Task, shuffled
from oarlock.errors import OarlockError


def source(classes: int = 10, train: int = 5, test: int = 2) -> Source:
    """Pixel 0 of an image is its class, pixel 1 its number, pixel 2 tells train (0) from test (1)."""
    names = [f"c{i}" for i in range(classes)]

    def part(count: int, kind: int) -> Labelled:
        images = np.zeros((classes * count, 1, 1, 3), dtype=np.uint8)
        images[..., 0].flat = np.repeat(np.arange(classes), count)
        images[..., 1].flat = np.tile(np.arange(count), classes)
        images[..., 2] = kind
        return Labelled(images, np.repeat(names, count))

    return Source("toy", tuple(names), part(train, 0), part(test, 1), np.zeros((3, 1, 1, 3), dtype=np.uint8))


def pixels(images: Labelled) -> set[tuple[int, ...]]:
    return {tuple(x.ravel().tolist()) for x in images.images}


@given(classes=st.integers(1, 30), data=st.data(), order=st.integers(0, 5))
@settings(max_examples=50, deadline=None)
def test_a_stream_deals_every_class_and_image_once(classes: int, data: st.DataObject, order: int) -> None:
    toy = source(classes)
    increment = data.draw(st.integers(1, classes))
    stream = Stream.from_source(toy, increment, order)
    assert sorted(stream.classes) == sorted(toy.classes)
    assert [len(task.classes) for task in stream[:-1]] == [increment] * (len(stream) - 1)
    assert 1 <= len(stream[-1].classes) <= increment
    for part in ("train", "test"):
        dealt = [pixels(getattr(task, part)) for task in stream]
        assert sum(map(len, dealt)) == len(set().union(*dealt)) == len(getattr(toy, part))
    for task in stream:
        assert set(task.train.labels) == set(task.test.labels) == set(task.classes)


def test_a_list_sizes_the_tasks_and_leaves_the_rest_out() -> None:
    stream = Stream.from_source(source(), [4, 1, 2])
    assert [task.classes for task in stream] == [("c0", "c1", "c2", "c3"), ("c4",), ("c5", "c6")]


def test_the_last_task_may_be_smaller() -> None:
    assert [len(task.classes) for task in Stream.from_source(source(), 4)] == [4, 4, 2]


def test_a_stream_is_a_sequence() -> None:
    stream = Stream.from_source(source(), 2, order=3)
    assert len(stream) == 5 and list(stream) == list(stream.tasks)
    assert isinstance(stream[0], Task) and stream[-1] is stream.tasks[4]
    assert stream[1] in stream and stream.index(stream[1]) == 1
    part = stream[1:4:2]
    assert isinstance(part, Stream) and part.tasks == (stream[1], stream[3])
    assert (part.name, part.order) == ("toy", 3) and part.unknown is stream.unknown
    assert part.classes == stream[1].classes + stream[3].classes
    with pytest.raises(IndexError):
        stream[5]


def test_the_shipped_orders_are_those_of_the_ranking() -> None:
    shipped = json.loads((Path(streams.__file__).parent / "orders.json").read_text())
    assert list(shipped) == ["10", "90", "100", "200"]
    for count, orders in shipped.items():
        assert orders == [shuffled(int(count), order) for order in range(1, 6)]
        assert all(sorted(order) == list(range(int(count))) for order in orders)


@pytest.mark.parametrize("classes", [10, 12])
def test_orders_differ_from_each_other_and_stay_the_same(classes: int) -> None:
    orders = [Stream.from_source(source(classes), 2, order).classes for order in range(6)]
    assert len(set(orders)) == 6
    assert orders[0] == source(classes).classes
    assert orders[2] == Stream.from_source(source(classes), 2, 2).classes
    assert orders[1] == tuple(f"c{i}" for i in shuffled(classes, 1))


def test_the_shipped_order_is_the_one_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "orders.json").write_text(json.dumps({"3": [[2, 0, 1]]}))
    monkeypatch.setattr(streams, "_ORDERS", tmp_path / "orders.json")
    assert Stream.from_source(source(3), 1, order=1).classes == ("c2", "c0", "c1")


def test_an_order_may_be_spelled_out_and_leaves_unnamed_classes_out() -> None:
    stream = Stream.from_source(source(), 2, order=["c3", "c1", "c9"])
    assert stream.order == ("c3", "c1", "c9")
    assert [task.classes for task in stream] == [("c3", "c1"), ("c9",)]


@given(share=st.floats(0.01, 0.99), order=st.integers(0, 5))
@settings(max_examples=25, deadline=None)
def test_validation_images_come_from_train_and_hide_the_test_images(share: float, order: int) -> None:
    toy = source()
    stream = Stream.from_source(toy, 3, order, validation=share)
    for task in stream:
        train, validation = pixels(task.train), pixels(task.test)
        assert not train & validation
        assert train | validation == pixels(toy.train.of(task.classes))
        assert set(task.train.labels) == set(task.test.labels) == set(task.classes)
    assert stream.unknown is None


def test_validation_images_of_a_class_are_the_same_in_every_stream() -> None:
    def held_out(stream: Stream) -> set[tuple[int, ...]]:
        return set().union(*(pixels(task.test) for task in stream))

    one = held_out(Stream.from_source(source(), 2, 0, validation=0.4))
    assert one == held_out(Stream.from_source(source(), 5, 4, validation=0.4))


@pytest.mark.parametrize("increment", [0, -1, 11, 2.0, True, None, [], [0, 2], [3, -1], [2.5], [5, 6], "22", [True]])
def test_increments_that_make_no_sense_are_refused(increment: object) -> None:
    with pytest.raises(OarlockError, match=r"^increment"):
        Stream.from_source(source(), increment)


@pytest.mark.parametrize("order", [-1, 6, True, None, 1.5, ["c1", "lion"], ["c1", "c2", "c1"], "c1"])
def test_orders_that_make_no_sense_are_refused(order: object) -> None:
    with pytest.raises(OarlockError, match=r"^order"):
        Stream.from_source(source(), 1, order)


@pytest.mark.parametrize("validation", [-0.1, 1, 1.0, 2, float("nan")])
def test_validation_is_a_share(validation: float) -> None:
    with pytest.raises(OarlockError, match=r"^validation"):
        Stream.from_source(source(), 2, validation=validation)


def test_an_empty_order_is_refused() -> None:
    with pytest.raises(OarlockError, match="there are 0"):
        Stream.from_source(source(), 2, order=[])


def test_classes_without_images_are_refused() -> None:
    toy = source(4)
    testless = Source("toy", toy.classes, toy.train, toy.test.of(["c0", "c1", "c2"]))
    with pytest.raises(OarlockError, match="toy: class 'c3' has no test image"):
        Stream.from_source(testless, 2)
    assert len(Stream.from_source(testless, [2, 1])) == 2
    assert len(Stream.from_source(testless, 2, validation=0.3)) == 2
    with pytest.raises(OarlockError, match="class 'c0' has no train image"):
        Stream.from_source(Source("toy", toy.classes, toy.train.of(["c1"]), toy.test), 2)
    with pytest.raises(OarlockError, match="class 'c0' has no validation image"):
        Stream.from_source(source(4, train=1), 2, validation=0.3)
