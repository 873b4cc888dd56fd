"""Public data sets in small: Tiny-ImageNet in its layout however it is packed, CIFAR in torchvision's, downloads."""

import hashlib
import io
import json
import pickle
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from torchvision.datasets import CIFAR10, CIFAR100

from conftest import make_images
from oarlock.data import folders
from oarlock.data.datasets import data_directory, datasets, download, tiny_imagenet
from oarlock.data.datasets.tiny_imagenet import open_tiny_imagenet
from oarlock.data.sources import open_source
from oarlock.errors import OarlockError

WORDS = {
    "n01443537": "goldfish, Carassius auratus",
    "n02123045": "cat",
    "n02124075": "cat, Egyptian cat",
    "n09999999": "of no class here",
}
WNIDS = ["n02124075", "n01443537", "n02123045"]  # not sorted, as in the original


def jpeg(pixels: np.ndarray) -> bytes:
    content = io.BytesIO()
    Image.fromarray(pixels).save(content, "JPEG", quality=95)
    return content.getvalue()


def tiny_files(train: int = 4, val: int = 2, wnids: list[str] = WNIDS) -> dict[str, bytes]:
    """Every file by its name; the first image of the second class is grey."""
    files = {
        "wnids.txt": "\n".join(wnids).encode(),
        "words.txt": "\n".join(f"{wnid}\t{text}" for wnid, text in WORDS.items()).encode(),
        "test/images/test_0.JPEG": b"not looked at",
    }
    annotations = []
    for number, wnid in enumerate(wnids):
        for i, pixels in enumerate(make_images(number, train, 64)):
            grey = number == 1 and i == 0
            files[f"train/{wnid}/images/{wnid}_{i}.JPEG"] = jpeg(pixels[..., 0] if grey else pixels)
        files[f"train/{wnid}/{wnid}_boxes.txt"] = b"0"
        for i, pixels in enumerate(make_images(number, val, 64, seed=1)):
            name = f"val_{i * len(wnids) + number}.JPEG"
            files[f"val/images/{name}"] = jpeg(pixels)
            annotations.append(f"{name}\t{wnid}\t0\t0\t63\t63")
    files["val/val_annotations.txt"] = "\n".join(annotations).encode()
    return {f"tiny-imagenet-200/{name}": content for name, content in files.items()}


def pack(files: dict[str, bytes], path: Path) -> Path:
    """As a folder, .zip, .tar or .tar.gz, by the path's ending; in archives back to front."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("__MACOSX/tiny-imagenet-200/._wnids.txt", b"junk")
            for name in reversed(files):
                archive.writestr(name, files[name])
    elif ".tar" in path.name:
        with tarfile.open(path, "w:gz" if path.suffix == ".gz" else "w") as tar:
            for name in reversed(files):
                member = tarfile.TarInfo(f"./{name}")
                member.size = len(files[name])
                tar.addfile(member, io.BytesIO(files[name]))
    else:
        for name, content in files.items():
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(content)
    return path


# Tiny-ImageNet


@pytest.mark.parametrize("kind", ["folder", "folder/tiny-imagenet-200", "t.zip", "t.tar", "t.tar.gz"])
def test_tiny_imagenet_is_the_same_however_it_is_packed(tmp_path: Path, kind: str) -> None:
    files = tiny_files(train=12)
    path = tmp_path / kind
    pack(files, tmp_path / "folder" if kind.startswith("folder") else path)
    source = open_tiny_imagenet(path)
    assert source.classes == ("goldfish", "cat (n02123045)", "cat (n02124075)")  # by WordNet id
    assert source.wnids == dict(zip(source.classes, sorted(WNIDS), strict=True))
    assert source.train.images.shape == (36, 64, 64, 3) and source.test.images.shape == (6, 64, 64, 3)
    assert source.train.labels.tolist() == np.repeat(source.classes, 12).tolist()
    assert source.test.labels.tolist() == np.repeat(source.classes, 2).tolist()
    third = files["tiny-imagenet-200/train/n01443537/images/n01443537_10.JPEG"]  # 0, 1, 10, 11, 2, …
    assert np.array_equal(source.train.images[2], np.asarray(Image.open(io.BytesIO(third))))
    second = files["tiny-imagenet-200/val/images/val_4.JPEG"]
    assert np.array_equal(source.test.images[1], np.asarray(Image.open(io.BytesIO(second))))
    grey = source.train.images[0]
    assert np.array_equal(grey[..., 0], grey[..., 2]) and grey.std() > 1


def test_only_wanted_classes_are_decoded_and_keep_their_names(tmp_path: Path) -> None:
    files = tiny_files()
    files["tiny-imagenet-200/train/n01443537/images/n01443537_1.JPEG"] = b"no image"
    path = pack(files, tmp_path / "t.tar")
    source = open_tiny_imagenet(path, ["n02124075"])
    assert source.classes == ("cat (n02124075)",) and len(source.train) == 4 and len(source.test) == 2
    with pytest.raises(OarlockError, match=r"t\.tar: .*n01443537_1\.JPEG: not a readable image"):
        open_tiny_imagenet(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wnids.txt": None}, "no wnids.txt"),
        ({"words.txt": None}, "has no words.txt"),
        ({"val/val_annotations.txt": None}, "has no val/val_annotations.txt"),
        ({"val/images/val_99.JPEG": b""}, "val_99.JPEG is not in val_annotations.txt"),
        ({"val/images/val_0.JPEG": jpeg(np.zeros((32, 64, 3), np.uint8))}, "is 64x32 pixels"),
    ],
)
def test_what_is_not_the_original_layout_is_refused(tmp_path: Path, changes: dict, message: str) -> None:
    files = tiny_files() | {f"tiny-imagenet-200/{name}": content for name, content in changes.items()}
    path = pack({name: content for name, content in files.items() if content is not None}, tmp_path / "t.zip")
    with pytest.raises(OarlockError, match=rf"t\.zip: .*{message}"):
        open_tiny_imagenet(path)


@pytest.mark.parametrize("kind", ["t.zip", "t.tar", "t.tar.gz"])
def test_a_damaged_archive_is_refused(tmp_path: Path, kind: str) -> None:
    content = bytearray(pack(tiny_files(), tmp_path / kind).read_bytes())
    middle = len(content) // 2
    rotten = content[:middle] + bytes(600) + content[middle + 600 :]  # with a checksum over it, but for a plain tar
    for damaged in (content[:middle], b"", *([rotten] if kind != "t.tar" else [])):
        (tmp_path / kind).write_bytes(damaged)
        with pytest.raises(OarlockError, match=kind.replace(".", r"\.")):
            open_tiny_imagenet(tmp_path / kind)


def test_a_file_in_an_archive_has_a_limit_whatever_size_it_is_said_to_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = tiny_files() | {"tiny-imagenet-200/words.txt": bytes(100_000)}
    monkeypatch.setattr(folders, "LARGEST", 50_000)
    for kind in ("t.zip", "t.tar.gz", "t"):
        with pytest.raises(OarlockError, match=rf"{kind}: .*words\.txt: is larger than"):
            open_tiny_imagenet(pack(files, tmp_path / kind))


def test_an_encrypted_archive_is_refused(tmp_path: Path) -> None:
    path = pack(tiny_files(), tmp_path / "t.zip")
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x01\x02", 8), (b"PK\x03\x04", 6)):  # the flags of every file, here and there
        start = content.find(mark)
        while start >= 0:
            content[start + place] |= 1
            start = content.find(mark, start + 4)
    path.write_bytes(content)
    with pytest.raises(OarlockError, match=r"t\.zip: .* is encrypted; unpack it"):
        open_tiny_imagenet(path)


def test_an_archive_in_a_way_of_packing_that_python_does_not_know_is_refused(tmp_path: Path) -> None:
    path = pack(tiny_files(), tmp_path / "t.zip")
    content = bytearray(path.read_bytes())
    for mark, place in ((b"PK\x01\x02", 10), (b"PK\x03\x04", 8)):
        start = content.find(mark)
        while start >= 0:
            content[start + place] = 97
            start = content.find(mark, start + 4)
    path.write_bytes(content)
    with pytest.raises(OarlockError, match=r"t\.zip: cannot be read .*compression.*unpack it"):
        open_tiny_imagenet(path)


def test_an_archive_in_an_archive_is_refused_with_the_advice_to_unpack_it(tmp_path: Path) -> None:
    inner = pack(tiny_files(), tmp_path / "inner.zip").read_bytes()
    path = pack({"data/tiny-imagenet-200.zip": inner}, tmp_path / "t.tar")
    with pytest.raises(OarlockError, match=r"t\.tar: holds the archive data/tiny-imagenet-200\.zip.*unpack it"):
        open_tiny_imagenet(path)


def test_another_file_or_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_text("x" * 2000)
    with pytest.raises(OarlockError, match="neither a folder nor a readable"):
        open_tiny_imagenet(tmp_path / "t.txt")
    with pytest.raises(OarlockError, match="no such file"):
        open_tiny_imagenet(tmp_path / "gone.zip")


# CIFAR


def cifar_folder(root: Path, reader: type[CIFAR10], monkeypatch: pytest.MonkeyPatch) -> Path:
    """A few images in torchvision's layout, with torchvision's checksums made theirs."""
    folder = root / reader.base_folder
    folder.mkdir(parents=True)
    hundred = reader is CIFAR100
    names = list(datasets.find("cifar100" if hundred else "cifar10").classes)

    def write(name: str, content: dict) -> str:
        (folder / name).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / name).read_bytes()).hexdigest()

    def batch(seed: int, count: int) -> dict:
        pixels = np.random.default_rng(seed).integers(0, 256, (count, 3072)).astype(np.uint8)
        return {"data": pixels, "fine_labels" if hundred else "labels": [i % len(names) for i in range(count)]}

    for kind in ("train_list", "test_list"):
        listed = [[name, write(name, batch(n, 2 * len(names)))] for n, (name, _) in enumerate(getattr(reader, kind))]
        monkeypatch.setattr(reader, kind, listed)
    meta = dict(reader.meta)
    meta["md5"] = write(meta["filename"], {meta["key"]: names})
    monkeypatch.setattr(reader, "meta", meta)
    return root


@pytest.mark.parametrize(("name", "reader"), [("cifar10", CIFAR10), ("cifar100", CIFAR100)])
def test_cifar_is_read_as_torchvision_reads_it(
    name: str, reader: type[CIFAR10], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = cifar_folder(tmp_path / "data", reader, monkeypatch)
    data = datasets.find(name)
    expected = reader(root, train=False)
    for path in (root, root / reader.base_folder):
        source = data.open(path)
        assert source.classes == data.classes and source.name == name
        assert np.array_equal(source.test.images, expected.data)
        assert source.test.labels.tolist() == [data.classes[i] for i in expected.targets]
        assert len(source.train) == 2 * len(data.classes) * len(reader.train_list)


def test_cifar_by_name_comes_from_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OARLOCK_DATA", str(tmp_path / "cache"))
    cifar_folder(tmp_path / "cache", CIFAR10, monkeypatch)
    assert len(open_source("cifar10").train) == 100


def test_a_damaged_cifar_is_refused_and_not_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = cifar_folder(tmp_path, CIFAR10, monkeypatch)
    (root / CIFAR10.base_folder / "test_batch").write_bytes(b"something else")
    with pytest.raises(OarlockError, match="cifar-10-batches-py: damaged or not complete"):
        datasets.find("cifar10").open(root)
    with pytest.raises(OarlockError, match="has no folder cifar-100-python"):
        datasets.find("cifar100").open(root)


def test_a_failed_download_of_cifar_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OARLOCK_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(CIFAR10, "url", "http://127.0.0.1:9/cifar-10-python.tar.gz")
    with pytest.raises(OarlockError, match=r"could not be downloaded .*--data"):
        open_source("cifar10")


# Archives of arrays


def npz(path: Path, classes: list[str]) -> Path:
    images = np.zeros((len(classes), 4, 4, 3), np.uint8)
    images[:, 0, 0, 0] = np.arange(len(classes))
    numbers = np.arange(len(classes))
    np.savez(path, train_x=images, train_y=numbers, test_x=images, test_y=numbers, classes=np.array(classes))
    return path


def test_an_archive_of_arrays_is_put_into_the_listed_order(tmp_path: Path) -> None:
    data = datasets.find("cifar10")
    source = data.open(npz(tmp_path / "c.npz", list(reversed(data.classes))))
    assert source.classes == data.classes
    assert source.train.images[source.train.labels == "airplane"][0, 0, 0, 0] == 9


def test_the_trees_of_cifar_100_go_by_two_names(tmp_path: Path) -> None:
    data = datasets.find("cifar100")
    trees = ("maple", "oak", "palm", "pine", "willow")
    names = [f"{name}_tree" if name in trees else name for name in data.classes]
    assert data.open(npz(tmp_path / "c.npz", names)).classes == tuple(names)


def test_classes_of_tiny_imagenet_in_an_archive_are_wordnet_ids(tmp_path: Path) -> None:
    data = datasets.find("tiny-imagenet")
    source = data.open(npz(tmp_path / "t.npz", list(data.classes)), ["n02124075", "n01443537"])
    assert source.classes == ("n02124075", "n01443537") and len(source.train) == 2
    assert source.wnids["n01443537"] == "n01443537"


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["airplane", "lion"], "'lion' is not a class of CIFAR-10"),
        ([str(i) for i in range(10)], "'0' is not a class of CIFAR-10"),
        (["airplane", "truck"], "has 2 of the 10 classes of CIFAR-10 that are needed; automobile is missing"),
    ],
)
def test_an_archive_of_other_classes_is_refused(tmp_path: Path, classes: list[str], message: str) -> None:
    with pytest.raises(OarlockError, match=rf"c\.npz: {message}"):
        datasets.find("cifar10").open(npz(tmp_path / "c.npz", classes))


def test_a_tiny_imagenet_without_some_classes_is_refused(tmp_path: Path) -> None:
    path = pack(tiny_files(wnids=["n01443537", "n02124075"]), tmp_path / "t.tar")
    assert len(datasets.find("tiny-imagenet").open(path, ["n02124075"]).classes) == 1
    with pytest.raises(OarlockError, match=r"t\.tar: has 2 of the 200 classes"):
        datasets.find("tiny-imagenet").open(path)


def test_the_lists_are_those_of_the_data_sets() -> None:
    assert [len(data.classes) for data in datasets.all().values()] == [10, 100, 200]
    assert all(len(set(data.classes)) == len(data.classes) for data in datasets.all().values())
    card = json.loads((Path(tiny_imagenet.__file__).parents[2] / "nets/weights/vit_pico.json").read_text())
    listed = sorted(entry["wnid"] for kind in ("classes", "excluded") for entry in card[kind])
    assert list(datasets.find("tiny-imagenet").classes) == listed


# Downloads


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """Serves tmp_path/served on this machine; its address."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder)) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()


def test_tiny_imagenet_is_downloaded_once(tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served = pack(tiny_files(), tmp_path / "served" / "t.zip")
    monkeypatch.setenv("OARLOCK_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(tiny_imagenet, "URL", f"{server}/t.zip")
    monkeypatch.setattr(tiny_imagenet, "MD5", hashlib.md5(served.read_bytes()).hexdigest())
    assert len(open_tiny_imagenet(None).train) == 12
    served.unlink()
    assert len(open_tiny_imagenet(None).train) == 12
    assert (tmp_path / "cache" / "tiny-imagenet-200.zip").exists()


@pytest.mark.parametrize(("name", "message"), [("t.zip", "another checksum"), ("gone.zip", "404")])
def test_a_failed_download_leaves_nothing_and_says_what_to_do(
    tmp_path: Path, server: str, monkeypatch: pytest.MonkeyPatch, name: str, message: str
) -> None:
    pack(tiny_files(), tmp_path / "served" / "t.zip")
    monkeypatch.setenv("OARLOCK_DATA", str(tmp_path / "cache"))
    monkeypatch.setattr(tiny_imagenet, "URL", f"{server}/{name}")
    with pytest.raises(OarlockError, match=rf"{message}.*--data PATH"):
        open_tiny_imagenet(None)
    assert [path.name for path in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_download_is_whole_or_an_error(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"content")
    right = hashlib.md5(b"content").hexdigest()
    assert download((tmp_path / "a").as_uri(), tmp_path / "b", md5=right).read_bytes() == b"content"
    with pytest.raises(OarlockError, match="7 bytes arrived"):
        download((tmp_path / "a").as_uri(), tmp_path / "c", md5="0" * 32)
    with pytest.raises(OarlockError, match="could not be downloaded"):
        download("http://127.0.0.1:9/x", tmp_path / "c", md5=right)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_the_data_directory_can_be_chosen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OARLOCK_DATA", str(tmp_path))
    assert data_directory() == tmp_path
    monkeypatch.delenv("OARLOCK_DATA")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_directory() == tmp_path / ".cache" / "oarlock"


def test_a_data_directory_that_cannot_be_made_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("OARLOCK_DATA", str(tmp_path / "file" / "cache"))
    with pytest.raises(OarlockError, match="file/cache cannot be made"):
        open_source("tiny-imagenet")
