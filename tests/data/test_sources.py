import shutil
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from oarlock.data.sources import Labelled, Source, hash_ranking, open_source
from oarlock.errors import OarlockError


def numbered(labels: list[str]) -> Labelled:
    """Images whose pixels are their positions, so that none can be mistaken for another."""
    positions = np.arange(len(labels), dtype=np.uint8).reshape(-1, 1, 1, 1)
    return Labelled(np.broadcast_to(positions, (len(labels), 2, 2, 3)), np.array(labels, dtype=str))


def positions(images: Labelled) -> list[int]:
    assert isinstance(images.images, np.ndarray)
    assert len(images) == len(images.images) == len(images.labels)
    return images.images[:, 0, 0, 0].tolist()


def archive(path: Path, **changes: np.ndarray | None) -> Path:
    arrays: dict[str, np.ndarray | None] = {
        "train_x": np.arange(4 * 48, dtype=np.uint8).reshape(4, 4, 4, 3),
        "train_y": np.array([0, 1, 0, 1]),
        "test_x": np.zeros((2, 4, 4, 3), dtype=np.uint8),
        "test_y": np.array([1, 0]),
        "classes": np.array(["bee", "ant"]),
    }
    arrays.update(changes)
    np.savez(path, **{key: array for key, array in arrays.items() if array is not None})
    return path


def make_images(folder: Path, counts: dict[str, int]) -> Path:
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for i in range(count):
            Image.new("L", (4, 4), i).save(folder / name / f"{i:03}.png")
    return folder


# Labelled


def test_the_ranking_never_changes() -> None:
    assert hash_ranking(str(i) for i in range(8)) == [4, 3, 0, 1, 7, 2, 6, 5]
    assert hash_ranking([]) == []


labels = st.lists(st.sampled_from(["ant", "bee", "cat", "dog"]), max_size=60)


@given(labels=labels, chosen=st.sets(st.sampled_from(["ant", "bee", "cat", "eel"])))
def test_the_images_of_some_classes_keep_their_order(labels: list[str], chosen: set[str]) -> None:
    some = numbered(labels).of(chosen)
    assert positions(some) == [i for i, label in enumerate(labels) if label in chosen]
    assert some.labels.tolist() == [label for label in labels if label in chosen]


@given(labels=labels, share=st.floats(0.01, 0.99))
def test_a_split_is_disjoint_complete_and_by_class(labels: list[str], share: float) -> None:
    rest, part = numbered(labels).split(share)
    assert positions(rest) == sorted(positions(rest)) and positions(part) == sorted(positions(part))
    assert sorted(positions(rest) + positions(part)) == list(range(len(labels)))
    for images in (rest, part):
        assert images.labels.tolist() == [labels[i] for i in positions(images)]
    for name, count in Counter(labels).items():
        taken = part.labels.tolist().count(name)
        assert taken < count
        assert count == 1 or (taken >= 1 and abs(taken - share * count) <= 1)


@given(labels=labels)
def test_the_split_of_a_class_does_not_depend_on_the_others(labels: list[str]) -> None:
    images = numbered(labels)
    alone = images.of(["ant"]).split(0.3)
    together = images.split(0.3)
    assert [positions(x) for x in alone] == [positions(x.of(["ant"])) for x in together]


def test_the_split_of_files_depends_on_their_names_only() -> None:
    names = [f"{i}.jpg" for i in range(20)]
    one = Labelled(tuple(Path("one") / name for name in names), np.array(["ant"] * 20))
    two = Labelled(tuple(Path("two") / name for name in reversed(names)), np.array(["ant"] * 20))
    chosen = [{path.name for path in images.split(0.25)[1].images} for images in (one, two)]
    assert chosen[0] == chosen[1] and len(chosen[0]) == 5


@pytest.mark.parametrize("share", [0, 1, -0.5, 1.5, float("nan")])
def test_a_share_lies_between_nothing_and_everything(share: float) -> None:
    with pytest.raises(OarlockError, match="between 0 and 1"):
        numbered(["ant"] * 4).split(share)


# The sample


def test_the_sample_is_whole() -> None:
    sample = open_source("sample")
    assert sample.name == "sample" and len(sample.classes) == 10
    for part, count in ((sample.train, 200), (sample.test, 50)):
        assert part.images.shape == (10 * count, 32, 32, 3) and part.images.dtype == np.uint8
        assert Counter(part.labels.tolist()) == dict.fromkeys(sample.classes, count)
    assert sample.unknown.shape == (300, 32, 32, 3)
    assert not {x.tobytes() for x in sample.train.images} & {x.tobytes() for x in sample.test.images}


def test_a_damaged_sample_is_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import oarlock.data.sources as sources

    shutil.copytree(sources._SAMPLE, tmp_path / "sample")
    monkeypatch.setattr(sources, "_SAMPLE", tmp_path / "sample")
    with Image.open(tmp_path / "sample/test.png") as mosaic:
        mosaic.putpixel((5, 5), (1, 2, 3))
        mosaic.save(tmp_path / "sample/test.png")
    with pytest.raises(OarlockError, match=r"test\.png: the bundled sample is damaged"):
        open_source("sample")


# Archives


def test_an_archive_is_read(tmp_path: Path) -> None:
    unknown = np.full((1, 5, 5, 3), 7, dtype=np.uint8)
    source = open_source(archive(tmp_path / "zoo.npz", unknown_x=unknown))
    assert source.name == "zoo" and source.classes == ("bee", "ant")
    assert source.train.labels.tolist() == ["bee", "ant", "bee", "ant"]
    assert source.test.labels.tolist() == ["ant", "bee"]
    assert np.array_equal(source.unknown, unknown)


def test_without_class_names_the_labels_are_the_names(tmp_path: Path) -> None:
    numbers = archive(tmp_path / "a.npz", classes=None, train_y=np.array([10, 2, 10, 2]), test_y=np.array([2, 10]))
    assert open_source(numbers).classes == ("2", "10")
    words = archive(tmp_path / "b.npz", classes=None, train_y=np.array(list("baba")), test_y=np.array(["a", "b"]))
    source = open_source(str(words))
    assert source.classes == ("a", "b") and source.train.labels.tolist() == list("baba")
    assert source.unknown is None


def test_labels_may_be_names_that_classes_put_in_order(tmp_path: Path) -> None:
    names = np.array(["ant", "bee", "ant", "bee"])
    source = open_source(archive(tmp_path / "a.npz", train_y=names, test_y=names[:2]))
    assert source.classes == ("bee", "ant") and source.train.labels.tolist() == names.tolist()


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"test_y": None, "train_x": None}, "has no train_x, test_y"),
        ({"train_x": np.zeros((4, 4, 4, 3))}, r"train_x is float64 \(4, 4, 4, 3\); make it uint8"),
        ({"test_x": np.zeros((2, 4, 4), np.uint8)}, "test_x is uint8"),
        ({"test_x": np.zeros((2, 3, 4, 4), np.uint8)}, "test_x is uint8"),
        ({"train_x": np.zeros((0, 4, 4, 3), np.uint8), "train_y": np.array([], int)}, "with images in it"),
        ({"unknown_x": np.zeros((2, 4, 4, 3), int)}, "unknown_x is int64"),
        ({"train_y": np.array([0, 1, 0])}, "train_x has 4 images but train_y has 3 labels"),
        ({"train_y": np.array([0.0, 1, 0, 1])}, "train_y is float64"),
        ({"test_y": np.array([True, False])}, "test_y is bool"),
        ({"test_y": np.array([[1, 0]])}, r"test_y is int64 \(1, 2\)"),
        ({"train_y": np.array([0, 1, 0, 2])}, "train_y has the label 2, which classes does not name"),
        ({"train_y": np.array([0, 1, 0, -1])}, "train_y has the label -1, which classes does not name"),
        ({"test_y": np.array(["ant", "cat"])}, "test_y has the label cat, which classes does not name"),
        ({"classes": None, "test_y": np.array([5, 0])}, "test_y has the label 5, which train_y does not name"),
        ({"classes": np.array(["ant", "ant"])}, "classes names a class twice"),
        ({"classes": np.array([], dtype=str)}, r"classes is <U1 \(0,\); make it a list"),
        ({"classes": np.array([0, 1])}, "classes is int64"),
        ({"train_y": np.array([0, 1, 0, 1], dtype=object)}, "not a readable .npz archive"),
    ],
)
def test_a_malformed_archive_is_refused(tmp_path: Path, changes: dict, message: str) -> None:
    with pytest.raises(OarlockError, match=rf"zoo\.npz: .*{message}"):
        open_source(archive(tmp_path / "zoo.npz", **changes))


def test_what_is_no_archive_is_refused(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.zeros(3))
    (tmp_path / "array.npy").rename(tmp_path / "array.npz")
    (tmp_path / "text.npz").write_text("not an archive")
    (tmp_path / "empty.npz").touch()
    for name in ("array", "text", "empty"):
        with pytest.raises(OarlockError, match=rf"{name}\.npz: not a readable \.npz archive"):
            open_source(tmp_path / f"{name}.npz")


@given(cut=st.floats(0, 0.999), flip=st.none() | st.integers(0, 255))
@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_damaged_archive_is_refused_or_read_never_a_crash(tmp_path: Path, cut: float, flip: int | None) -> None:
    data = bytearray(archive(tmp_path / "whole.npz").read_bytes())
    place = int(cut * len(data))
    if flip is None:
        del data[place:]
    else:
        data[place] = flip
    damaged = tmp_path / "damaged.npz"
    damaged.write_bytes(data)
    try:
        source = open_source(damaged)
    except OarlockError as error:
        assert "damaged.npz" in str(error)
    else:
        assert flip is not None and isinstance(source, Source)


# Folders


def test_a_fifth_of_each_class_is_set_aside_as_test(tmp_path: Path) -> None:
    source = open_source(make_images(tmp_path / "zoo", {"cat": 10, "ant": 2, "bee": 1}))
    assert source.name == "zoo" and source.classes == ("ant", "bee", "cat") and source.unknown is None
    assert Counter(source.train.labels.tolist()) == {"ant": 1, "bee": 1, "cat": 8}
    assert Counter(source.test.labels.tolist()) == {"ant": 1, "cat": 2}
    assert not set(source.train.images) & set(source.test.images)
    for part in (source.train, source.test):
        assert [path.parent.name for path in part.images] == part.labels.tolist()


def test_the_images_set_aside_are_the_same_wherever_the_folder_lies(tmp_path: Path) -> None:
    first = make_images(tmp_path / "first", {"ant": 10, "bee": 10})
    second = shutil.copytree(first, tmp_path / "elsewhere" / "second")
    chosen = [[path.name for path in open_source(folder).test.images] for folder in (first, second)]
    assert chosen[0] == chosen[1]


@pytest.mark.parametrize("held_out", ["test", "val"])
def test_a_folder_may_come_split(tmp_path: Path, held_out: str) -> None:
    make_images(tmp_path / "train", {"bee": 3, "ant": 2})
    make_images(tmp_path / held_out, {"ant": 1, "bee": 2})
    make_images(tmp_path, {"unknown": 4})
    source = open_source(str(tmp_path))
    assert source.classes == ("ant", "bee") and len(source.unknown) == 4
    assert source.train.labels.tolist() == ["ant", "ant", "bee", "bee", "bee"]
    assert source.test.labels.tolist() == ["ant", "bee", "bee"]
    assert all(held_out in path.parts for path in source.test.images)


def test_what_is_tested_on_may_lie_elsewhere(tmp_path: Path) -> None:
    train = make_images(tmp_path / "shelf", {"ant": 3, "bee": 2})
    test, unknown = make_images(tmp_path / "other", {"bee": 4, "ant": 1}), make_images(tmp_path, {"strange": 5})
    source = open_source(train, test, unknown / "strange")
    assert source.classes == ("ant", "bee") and source.name == "shelf"
    assert (len(source.train), len(source.test), len(source.unknown)) == (5, 5, 5)
    only_unknown = open_source(train, unknown=unknown / "strange")
    assert len(only_unknown.train) + len(only_unknown.test) == 5 and len(only_unknown.unknown) == 5


def test_a_folder_that_has_only_train_may_be_tested_on_another(tmp_path: Path) -> None:
    make_images(tmp_path / "shop" / "train", {"ant": 3, "bee": 2})
    source = open_source(tmp_path / "shop", make_images(tmp_path / "other", {"ant": 1, "bee": 1}))
    assert (len(source.train), len(source.test), source.unknown) == (5, 2, None)


def test_what_is_tested_on_has_the_classes_that_are_trained_on(tmp_path: Path) -> None:
    train, fewer = make_images(tmp_path / "shelf", {"ant": 3, "bee": 2}), make_images(tmp_path / "few", {"ant": 1})
    more = make_images(tmp_path / "more", {"ant": 1, "bee": 1, "cat": 1})
    with pytest.raises(OarlockError, match=r"few has no images of 'bee'"):
        open_source(train, fewer)
    with pytest.raises(OarlockError, match=r"more.cat: .*shelf has no such class"):
        open_source(train, more)
    with pytest.raises(OarlockError, match="goes with a folder of classes"):
        open_source("sample", more)


def test_a_class_may_be_called_train(tmp_path: Path) -> None:
    assert open_source(make_images(tmp_path, {"bus": 3, "train": 3})).classes == ("bus", "train")


def test_a_folder_is_checked(tmp_path: Path) -> None:
    train = make_images(tmp_path / "train", {"ant": 2})
    with pytest.raises(OarlockError, match="neither test nor val"):
        open_source(tmp_path)
    test = make_images(tmp_path / "test", {"ant": 1, "bee": 1})
    with pytest.raises(OarlockError, match=r"test/bee: .*no such class"):
        open_source(tmp_path)
    (train / "bee").mkdir()
    with pytest.raises(OarlockError, match="train/bee: no images"):
        open_source(tmp_path)
    with pytest.raises(OarlockError, match="has no class"):
        open_source(test / "ant")


@pytest.mark.parametrize("where", ["cifar1000", Path("sample"), "gone.npz"])
def test_an_unknown_source_says_what_is_accepted(
    where: str | Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OarlockError, match=r"does not exist: give 'sample', an \.npz archive or a folder"):
        open_source(where)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    (tmp_path / "zoo.csv").write_text("a,b")
    with pytest.raises(OarlockError, match=r"zoo\.csv' is neither an \.npz archive nor a folder"):
        open_source(tmp_path / "zoo.csv")


def test_a_fingerprint_tells_other_pixels_labels_and_files_apart(tmp_path: Path) -> None:
    pixels, labels = np.zeros((2, 4, 4, 3), np.uint8), np.array(["a", "b"])
    changed = pixels.copy()
    changed[1, 3, 3, 2] = 1
    prints = {Labelled(pixels, labels).sha256(), Labelled(changed, labels).sha256()}
    prints.add(Labelled(pixels, labels[::-1]).sha256())
    for name, size in (("x.png", 3), ("y.png", 3), ("x.png", 4)):
        (tmp_path / name).write_bytes(bytes(size))
        prints.add(Labelled((tmp_path / name,), labels[:1]).sha256())
    assert len(prints) == 6
    assert Labelled(pixels.copy(), labels.copy()).sha256() in prints
