"""One line for each kind of data that people have: docs/how-to/your-data.md has the same lines."""

import io
import tarfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from conftest import make_task
from contract.conftest import State, assert_same, snapshot
from oarlock import Learner
from oarlock.nets.trunks import Trunk

NAMES = ["ant", "bee"]


@pytest.fixture
def learner(tiny_trunk: Trunk) -> Learner:
    return Learner("slda", trunk=tiny_trunk)


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Files of two classes in their folders."""
    images, labels = make_task(NAMES)
    paths = [tmp_path / "photos" / name / f"{index:02}.png" for index, name in enumerate(labels)]
    for path, image in zip(paths, images, strict=True):
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
    return paths


@pytest.fixture
def expected(tiny_trunk: Trunk) -> State:
    return snapshot(Learner("slda", trunk=tiny_trunk).learn(*make_task(NAMES)))


def test_a_hugging_face_dataset(learner: Learner, photos: list[Path], expected: State) -> None:
    datasets = pytest.importorskip("datasets", reason="datasets is not installed")
    features = datasets.Features({"image": datasets.Image(), "label": datasets.ClassLabel(names=NAMES)})
    content = {"image": [str(path) for path in photos], "label": [path.parent.name for path in photos]}
    data = datasets.Dataset.from_dict(content, features=features)
    learner.learn(data["image"], data.features["label"].int2str(data["label"][:]))
    assert_same(snapshot(learner), expected)


def test_torchvisions_image_folder(learner: Learner, photos: list[Path], expected: State) -> None:
    from torchvision.datasets import ImageFolder

    data = ImageFolder(photos[0].parents[1])
    learner.learn(data, [data.classes[number] for number in data.targets])
    assert_same(snapshot(learner), expected)


def test_a_torchvision_dataset_of_pairs(learner: Learner) -> None:
    from torchvision.datasets import FakeData

    assert learner.learn(FakeData(12, (3, 16, 16), 2)).classes_.dtype.kind == "i"


def test_shards(learner: Learner, photos: list[Path], expected: State, tmp_path: Path) -> None:
    wds = pytest.importorskip("webdataset", reason="webdataset is not installed")
    for shard in range(2):
        with tarfile.open(tmp_path / f"photos-{shard}.tar", "w") as tar:
            for path in photos[10 * shard : 10 * shard + 10]:
                for suffix, content in (("png", path.read_bytes()), ("txt", path.parent.name.encode())):
                    entry = tarfile.TarInfo(f"{path.stem}.{suffix}")
                    entry.size = len(content)
                    tar.addfile(entry, io.BytesIO(content))
    shards = wds.WebDataset(f"{tmp_path}/photos-{{0..1}}.tar", shardshuffle=False)
    learner.learn(*zip(*shards.decode("pil").to_tuple("png", "txt"), strict=True))
    assert_same(snapshot(learner), expected)


def test_a_table_of_paths_and_labels(learner: Learner, photos: list[Path], expected: State) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    content = {"path": [str(path) for path in photos], "label": [path.parent.name for path in photos]}
    frame = pandas.DataFrame(content, index=range(5, 25))  # rows of a larger table
    learner.learn(frame["path"], frame["label"])
    assert_same(snapshot(learner), expected)
    assert learner.predict(frame["path"]).tolist() == learner.predict(photos).tolist()


def test_samples_of_fiftyone(learner: Learner, photos: list[Path], expected: State) -> None:
    """By what FiftyOne documents of `values`; it needs a database to be installed."""
    values = {"filepath": list(map(str, photos)), "ground_truth.label": [path.parent.name for path in photos]}
    samples = SimpleNamespace(values=values.get)
    learner.learn(samples.values("filepath"), samples.values("ground_truth.label"))
    assert_same(snapshot(learner), expected)


def test_a_table_of_features() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(20, 3)), columns=["a", "b", "c"])
    frame["label"] = ["ant", "bee"] * 10
    learner = Learner("slda", trunk=None).learn(frame[["a", "b", "c"]], frame["label"])
    assert learner.predict(frame[["a", "b", "c"]]).shape == (20,)
