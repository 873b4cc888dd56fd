"""Pictures as cameras, editors, phones and bad disks leave them."""

import struct
import zlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from conftest import make_images
from oarlock import Learner
from oarlock.data.folders import class_folders, files_by_class, find_images, image_files, size_of
from oarlock.data.images import Preprocessing, fit_picture, prepare, read_files
from oarlock.errors import OarlockError
from oarlock.nets.trunks import Trunk
from oarlock.training import NoCallback, Phase

HALF = (0.5, 0.5, 0.5)
RULE = Preprocessing(size=8, resize=8, mean=HALF, std=HALF)
GREEN = (10, 200, 30)


def read(path: Path) -> np.ndarray:
    return prepare(path, RULE)[0].permute(1, 2, 0).numpy()


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def with_chunk(png: Path, kind: bytes, content: bytes) -> None:
    """Put a chunk before the pixels."""
    written = png.read_bytes()
    pixels = written.index(b"IDAT") - 4
    png.write_bytes(written[:pixels] + chunk(kind, content) + written[pixels:])


# Kinds of pictures


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photograph_is_turned_as_its_camera_says(orientation: int, tmp_path: Path) -> None:
    upright = np.zeros((8, 8), dtype=np.uint8)
    upright[:4, :2] = 255
    held = [
        upright,
        upright[:, ::-1],
        upright[::-1, ::-1],
        upright[::-1],
        upright.T,
        np.rot90(upright),
        np.rot90(upright, 2).T,
        np.rot90(upright, -1),
    ][orientation - 1]
    exif = Image.Exif()
    exif[0x0112] = orientation
    Image.fromarray(np.ascontiguousarray(held)).save(tmp_path / "a.jpg", exif=exif, quality=95)
    assert ((read(tmp_path / "a.jpg")[..., 0] > 128) == (upright > 128)).all()


def test_a_jpeg_for_printers_keeps_its_colours(tmp_path: Path) -> None:
    Image.new("RGB", (16, 16), GREEN).convert("CMYK").save(tmp_path / "a.jpg", quality=95)
    assert np.abs(read(tmp_path / "a.jpg").astype(int) - GREEN).max() < 8


def test_of_an_animation_the_first_frame_is_taken(tmp_path: Path) -> None:
    frames = [Image.new("RGB", (8, 8), colour) for colour in (GREEN, "red", "blue")]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:])
    assert (read(tmp_path / "a.gif") == GREEN).all()


def test_a_palette_with_a_transparent_colour_lies_on_white(tmp_path: Path) -> None:
    picture = Image.new("P", (8, 8), 1)
    picture.putpalette([0, 0, 0, *GREEN])
    picture.paste(0, (0, 0, 8, 4))
    picture.save(tmp_path / "a.png", transparency=0)
    pixels = read(tmp_path / "a.png")
    assert (pixels[:4] == 255).all() and (pixels[4:] == GREEN).all()


def test_sixteen_bit_greys_are_scaled_and_may_have_a_transparent_one(tmp_path: Path) -> None:
    deep = np.full((8, 8), 100 * 257, dtype=np.uint16)
    deep[0] = 77
    Image.fromarray(deep).save(tmp_path / "a.png")
    pixels = read(tmp_path / "a.png")
    assert (pixels[0] == 0).all() and (pixels[1:] == 100).all()
    with_chunk(tmp_path / "a.png", b"tRNS", struct.pack(">H", 77))
    pixels = read(tmp_path / "a.png")
    assert (pixels[0] == 255).all() and (pixels[1:] == 100).all()


@pytest.mark.parametrize("in_a_file", [False, True])
def test_float_greys_are_scaled_and_others_refused(in_a_file: bool, tmp_path: Path) -> None:
    def given(grey: float) -> Image.Image | Path:
        picture = Image.fromarray(np.full((8, 8), grey, dtype=np.float32))
        if not in_a_file:
            return picture
        picture.save(tmp_path / "a.tif")
        return tmp_path / "a.tif"

    assert (fit_picture(given(0.2), "a", RULE) == 51).all()
    for grey in (200.0, -0.1, np.nan):
        with pytest.raises(OarlockError, match=r"a: float pixels must lie in 0\.\.1"):
            fit_picture(given(grey), "a", RULE)


# Files that cannot be read


def test_an_enormous_image_is_refused_by_its_header(tmp_path: Path) -> None:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", 20_000, 20_000, 8, 2, 0, 0, 0))
    (tmp_path / "bomb.png").write_bytes(b"\x89PNG\r\n\x1a\n" + header + chunk(b"IDAT", b"") + chunk(b"IEND", b""))
    with pytest.raises(OarlockError, match=r"bomb\.png: not read, for it has more than 178,956,970 pixels"):
        read(tmp_path / "bomb.png")


def test_text_called_an_image_is_told_from_a_damaged_image(tmp_path: Path) -> None:
    (tmp_path / "notes.png").write_text("not an image")
    with pytest.raises(OarlockError, match=r"notes\.png: .*\(its content is none of JPEG, PNG, .*\)"):
        read(tmp_path / "notes.png")
    Image.fromarray(make_images(0, 1, 64)[0]).save(tmp_path / "cut.jpg")
    (tmp_path / "cut.jpg").write_bytes((tmp_path / "cut.jpg").read_bytes()[:900])
    with pytest.raises(OarlockError, match=r"cut\.jpg: .*truncated"):
        read(tmp_path / "cut.jpg")


@pytest.mark.parametrize("name", ["two words.png", "naïve 犬.png", "line\nbreak.png", "quote'\".png", "[1]*.png"])
def test_any_file_name_is_read(name: str, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), GREEN).save(tmp_path / name)
    assert (read(tmp_path / name) == GREEN).all()
    assert image_files(tmp_path) == (tmp_path / name,)


def test_a_broken_image_is_named_before_training_begins(tmp_path: Path, tiny_trunk: Trunk) -> None:
    class NeverTrained(NoCallback):
        def on_phase(self, task: int, phase: Phase) -> None:
            raise AssertionError("training began")

    for label in (0, 1):
        (tmp_path / str(label)).mkdir()
        for number, image in enumerate(make_images(label, 3)):
            Image.fromarray(image).save(tmp_path / str(label) / f"{number}.jpg")
    broken = tmp_path / "1" / "1.jpg"
    broken.write_bytes(broken.read_bytes()[:200])
    with pytest.raises(OarlockError, match=r"1/1\.jpg: not a readable image"):
        Learner("row", trunk=tiny_trunk).learn(tmp_path, callback=NeverTrained())


# Links


def test_links_to_files_are_followed_and_no_link_leads_round_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    Image.new("RGB", (8, 8), GREEN).save(tmp_path / "elsewhere" / "real.png")
    photos = tmp_path / "photos"
    (photos / "cat").mkdir(parents=True)
    (photos / "cat" / "linked.png").symlink_to(tmp_path / "elsewhere" / "real.png")
    (photos / "cat" / "circle").symlink_to(photos)
    (photos / "dog").symlink_to(tmp_path / "elsewhere")
    assert files_by_class(photos) == {
        "cat": (photos / "cat" / "linked.png",),
        "dog": (photos / "dog" / "real.png",),
    }
    assert (read(photos / "cat" / "linked.png") == GREEN).all()


def test_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone.png").symlink_to(tmp_path / "nowhere.png")
    (tmp_path / "self.png").symlink_to(tmp_path / "self.png")
    assert len(image_files(tmp_path)) == 2
    with pytest.raises(OarlockError, match=r"gone\.png: a link to a file that does not exist"):
        prepare(tmp_path, RULE)
    with pytest.raises(OarlockError, match=r"gone\.png: a link to something that does not exist"):
        image_files(tmp_path / "gone.png")


def test_a_class_whose_folder_is_a_link_that_leads_nowhere_is_named(tmp_path: Path) -> None:
    (tmp_path / "cat").mkdir()
    (tmp_path / "dog").symlink_to(tmp_path / "unmounted" / "dog")
    with pytest.raises(OarlockError, match=r"dog: a link to something that does not exist"):
        class_folders(tmp_path)


def test_what_the_system_refuses_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for look in (image_files, class_folders, size_of):
        with pytest.raises(OarlockError, match=r"xxx: cannot be read \(File name too long\)"):
            look(tmp_path / ("x" * 300))

    def refuse(path: Path) -> Iterator[Path]:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "iterdir", refuse)  # a test may run as root, who may read everything
    for look in (image_files, class_folders):
        with pytest.raises(OarlockError, match=rf"{tmp_path}: cannot be read \(Permission denied\)"):
            look(tmp_path)


# Many files


def test_files_are_read_a_little_ahead_and_errors_take_their_place(tmp_path: Path) -> None:
    asked = 0

    def paths() -> Iterator[Path]:
        nonlocal asked
        for number in range(20):
            asked += 1
            yield tmp_path / f"{number}.png"

    for number in range(20):
        Image.new("L", (8, 8), number).save(tmp_path / f"{number}.png")
    (tmp_path / "3.png").write_text("not an image")
    read = list(read_files(paths(), RULE, ahead=4))
    assert [path.name for path, _ in read] == [f"{number}.png" for number in range(20)]
    assert isinstance(read[3][1], OarlockError)
    assert [int(picture[0, 0, 0]) for _, picture in read if not isinstance(picture, OarlockError)] == [
        number for number in range(20) if number != 3
    ]
    asked, files = 0, read_files(paths(), RULE, ahead=4)
    next(files)
    assert asked == 4
    files.close()


def test_pictures_of_the_user_are_left_as_they_are(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    Image.new("RGB", (8, 16), GREEN).save(tmp_path / "a.jpg", exif=exif)
    with Image.open(tmp_path / "a.jpg") as picture:
        once = prepare([picture], RULE)
        assert picture.size == (8, 16) and picture.getexif()[0x0112] == 6
        assert torch.equal(prepare([picture], RULE), once)


# Several mistakes


def test_all_files_that_cannot_be_read_are_named_together(tmp_path: Path) -> None:
    for number in range(30):
        Image.new("RGB", (8, 8), GREEN).save(tmp_path / f"{number:02}.png")
    for number in (3, 17, 29):
        (tmp_path / f"{number:02}.png").write_text("not an image")
    with pytest.raises(OarlockError) as raised:
        prepare(tmp_path, RULE)
    assert [sentence.partition(":")[0] for sentence in raised.value.args] == [
        str(tmp_path / name) for name in ("03.png", "17.png", "29.png")
    ]
    assert str(raised.value).count("\n") == 2


def test_of_many_mistakes_the_first_are_named_and_the_others_counted(tmp_path: Path) -> None:
    for number in range(33):
        (tmp_path / f"{number:02}.png").write_text("not an image")
    with pytest.raises(OarlockError) as raised:
        prepare(tmp_path, RULE)
    assert len(raised.value.args) == 21 and raised.value.args[-1] == "and 13 more like these"


def test_a_folder_below_that_may_not_be_looked_into_is_named_and_the_others_are_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("cat", "cat/open", "cat/shut", "cat/shut too", "dog", "empty", "dog/.hidden"):
        (tmp_path / name).mkdir()
        if name != "empty":
            Image.new("RGB", (8, 8), GREEN).save(tmp_path / name / "a.png")
    listed = Path.iterdir

    def refuse(path: Path) -> Iterator[Path]:
        if path.name.startswith("shut"):
            raise PermissionError(13, "Permission denied", str(path))
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", refuse)  # a test may run as root, who may read everything
    with pytest.raises(OarlockError) as raised:
        files_by_class(tmp_path)
    shut = [f"{tmp_path}/cat/{name}: cannot be read (Permission denied)" for name in ("shut", "shut too")]
    assert list(raised.value.args[:2]) == shut
    assert raised.value.args[2].startswith(f"{tmp_path}/empty: no images in this folder")
    files, problems = find_images(tmp_path)
    assert files == tuple(tmp_path / name for name in ("cat/a.png", "cat/open/a.png", "dog/a.png"))
    assert len(problems) == 2


def test_all_images_without_a_class_are_named(tmp_path: Path) -> None:
    for number in range(3):
        Image.new("RGB", (8, 8), GREEN).save(tmp_path / f"{number}.png")
    with pytest.raises(OarlockError) as raised:
        class_folders(tmp_path)
    assert len(raised.value.args) == 3
