"""Streams cut by Avalanche and Continuum: by what they document, and by themselves where they are installed."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from PIL import Image

from conftest import make_images
from oarlock import OarlockError
from oarlock.data.sources import open_source
from oarlock.data.streams import Stream
from oarlock.experiments.config import RunConfig
from oarlock.experiments.run import run

QUICK = {"epochs": 1, "wp_epochs": 1, "ood_epochs": 1, "width": 8, "adapt_last": 1}
TASKS = [[7, 2], [10, 0]]


def pictures(label: int, seed: int) -> np.ndarray:
    return make_images(label, 6, size=32, seed=seed)


class Untransformed:
    """What of an AvalancheDataset is documented: items (image, label, task label), with transforms to be removed."""

    def __init__(self, items: list[tuple[Any, int, int]], transform: Any = None) -> None:
        self.items, self.transform = items, transform

    def train(self) -> "Untransformed":
        return self

    def remove_current_transform_group(self) -> "Untransformed":
        return Untransformed(self.items)

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> tuple[Any, int, int]:
        image, label, task = self.items[index]
        return (self.transform(image) if self.transform else image), label, task


def experience(labels: list[int], seed: int) -> SimpleNamespace:
    items = [(Image.fromarray(image), label, 0) for label in labels for image in pictures(label, seed)]
    return SimpleNamespace(dataset=Untransformed(items, transform=lambda image: np.asarray(image) / 300 - 2))


def avalanche_like() -> SimpleNamespace:
    train, test = ([experience(labels, seed) for labels in TASKS] for seed in (0, 1))
    return SimpleNamespace(train_stream=train, test_stream=test)


def continuum_like(seed: int) -> list[SimpleNamespace]:
    def task_set(labels: list[int]) -> SimpleNamespace:
        images = np.concatenate([pictures(label, seed) for label in labels])
        numbers = np.repeat(labels, 6)
        return SimpleNamespace(get_raw_samples=lambda: (images, numbers, np.zeros(12)))

    return [task_set(labels) for labels in TASKS]


STREAMS = {
    "avalanche": lambda: Stream.from_avalanche(avalanche_like()),
    "continuum": lambda: Stream.from_continuum(continuum_like(0), continuum_like(1)),
}


@pytest.mark.parametrize("kind", STREAMS)
def test_tasks_have_the_images_as_they_were(kind: str) -> None:
    stream = STREAMS[kind]()
    assert stream.name == kind
    assert [task.classes for task in stream] == [("2", "7"), ("0", "10")]  # by number, not by letter
    for task, labels in zip(stream, TASKS, strict=True):
        for part, seed in ((task.train, 0), (task.test, 1)):
            assert part.labels.tolist() == np.repeat(labels, 6).astype(str).tolist()
            assert np.array_equal(part.images, np.concatenate([pictures(label, seed) for label in labels]))


@pytest.mark.parametrize("method", ["row", "slda"])
@pytest.mark.parametrize("kind", STREAMS)
def test_a_stream_at_hand_is_run_like_any_other(kind: str, method: str, tmp_path: Path) -> None:
    stream, options = STREAMS[kind](), QUICK if method == "row" else {}
    config = RunConfig.on_stream(stream, method=method, memory=8, threads=1, options=options)
    result = run(config, tmp_path / "run", stream=stream)
    assert result.tasks == [["2", "7"], ["0", "10"]] and result.increment == [2, 2]
    assert result.aca > 50
    again = run(config, tmp_path / "run", stream=stream, resume=True)
    assert again.accuracy == result.accuracy


def test_a_run_on_a_stream_at_hand_can_only_go_on_with_it(tmp_path: Path) -> None:
    stream = STREAMS["continuum"]()
    with pytest.raises(OarlockError, match="the stream 'continuum'"):
        run(RunConfig.on_stream(stream, method="slda"), tmp_path / "run")


def test_files_stay_files(tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.png" for index in range(4)]
    for path in paths:
        Image.fromarray(pictures(1, 0)[0]).save(path)
    names = np.array([str(path) for path in paths])
    parts = [SimpleNamespace(get_raw_samples=lambda: (names, np.array([0, 0, 1, 1]), np.zeros(4)))]
    assert Stream.from_continuum(parts, parts)[0].train.images == tuple(paths)


def test_pictures_of_other_sizes_are_fitted_to_most() -> None:
    items = [(Image.new("RGB", size), 0, 0) for size in ((32, 32), (32, 32), (64, 48))]
    one = SimpleNamespace(dataset=Untransformed(items))
    stream = Stream.from_avalanche(SimpleNamespace(train_stream=[one], test_stream=[one]))
    assert stream[0].train.images.shape == (3, 32, 32, 3)


def test_what_is_no_class_incremental_stream_is_refused() -> None:
    both = [experience([0, 1], 0), experience([1, 2], 0)]
    with pytest.raises(OarlockError, match="class '1' is in task 2 and in one before"):
        Stream.from_avalanche(SimpleNamespace(train_stream=both, test_stream=both))
    with pytest.raises(OarlockError, match="2 parts to train on and 1 to test on"):
        Stream.from_avalanche(SimpleNamespace(train_stream=both, test_stream=both[:1]))
    with pytest.raises(OarlockError, match="task 1 is tested on other classes"):
        Stream.from_avalanche(SimpleNamespace(train_stream=both[:1], test_stream=both[1:]))


def test_an_avalanche_benchmark_of_images_in_memory(tmp_path: Path) -> None:
    benchmarks = pytest.importorskip("avalanche.benchmarks", reason="no avalanche-lib", exc_type=ImportError)
    import torch
    from torch.utils.data import Dataset
    from torchvision.transforms import Compose, Normalize, ToTensor

    class InMemory(Dataset):
        def __init__(self, seed: int) -> None:
            self.images = np.concatenate([pictures(label, seed) for label in range(4)])
            self.targets = np.repeat(range(4), 6).tolist()

        def __len__(self) -> int:
            return len(self.targets)

        def __getitem__(self, index: int) -> tuple[Image.Image, int]:
            return Image.fromarray(self.images[index]), self.targets[index]

    transform = Compose([ToTensor(), Normalize((0.5,) * 3, (0.2,) * 3)])
    from avalanche.benchmarks.utils import as_classification_dataset

    groups = {"train": (transform, None), "eval": (transform, None)}
    train, test = (as_classification_dataset(InMemory(seed), transform_groups=groups) for seed in (0, 1))
    benchmark = benchmarks.nc_benchmark(train, test, n_experiences=2, task_labels=False, seed=0)
    assert torch.is_tensor(benchmark.train_stream[0].dataset[0][0])
    stream = Stream.from_avalanche(benchmark)
    assert sorted(stream.classes) == ["0", "1", "2", "3"]
    first = stream[0].train
    assert np.array_equal(first.of(first.labels[:1]).images, pictures(int(first.labels[0]), 0))
    runs_well(stream, tmp_path)


def test_a_continuum_scenario_over_the_sample(tmp_path: Path) -> None:
    continuum = pytest.importorskip("continuum", reason="continuum is not installed", exc_type=ImportError)
    sample, parts = open_source("sample"), []
    for labelled in (sample.train, sample.test):
        few = labelled.of(sample.classes[:4]).at_most(10)
        numbers = np.array([sample.classes.index(name) for name in few.labels])
        data = continuum.datasets.InMemoryDataset(few.images, numbers)
        parts.append(continuum.ClassIncremental(data, increment=2))
    stream = Stream.from_continuum(*parts)
    assert [task.classes for task in stream] == [("0", "1"), ("2", "3")]
    expected = sample.train.of(sample.classes[:2]).at_most(10).images
    assert np.array_equal(np.sort(stream[0].train.images, axis=None), np.sort(expected, axis=None))
    runs_well(stream, tmp_path)


def runs_well(stream: Stream, folder: Path) -> None:
    for method, options in (("row", QUICK), ("slda", {})):
        config = RunConfig.on_stream(stream, method=method, memory=8, threads=1, options=options)
        assert len(run(config, folder / method, stream=stream).accuracy) == len(stream)
