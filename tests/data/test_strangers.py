"""Pictures from strangers: other formats under a good name, and pictures so large that a few fill the memory."""

import io
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageOps

from oarlock.data import pictures
from oarlock.data.images import read_files, short_side
from oarlock.data.pictures import PixelBudget, Preprocessing, fit_picture, open_picture
from oarlock.errors import OarlockError

HALF = (0.5, 0.5, 0.5)
RULE = Preprocessing(size=56, resize=64, mean=HALF, std=HALF)


def scene(width: int, height: int, seed: int = 0) -> Image.Image:
    """Something with large and small structure."""
    coarse = np.random.default_rng(seed).integers(0, 256, (9, 12, 3)).astype("uint8")
    return Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC)


def in_one_step(image: Image.Image) -> np.ndarray:
    """What is to come out, written down once more: white under what is transparent, resized, cropped."""
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert("RGB")
    short = min(image.size)
    width, height = (int(RULE.resize * side / short) for side in image.size)
    left, top = (round((side - RULE.size) / 2) for side in (width, height))
    image = image.resize((width, height), Image.Resampling.BICUBIC)
    return np.asarray(image.crop((left, top, left + RULE.size, top + RULE.size)))


@pytest.mark.parametrize("kind", ["EPS", "PDF", "ICO", "TGA", "PCX"])
def test_a_format_that_is_not_documented_is_not_decoded_whatever_its_name(kind: str, tmp_path: Path) -> None:
    scene(64, 64).save(tmp_path / "a", kind)
    sheep = (tmp_path / "a").rename(tmp_path / "sheep.jpg")
    with pytest.raises(OarlockError, match=r"sheep\.jpg: not a readable image \(its content is none of JPEG, PNG"):
        fit_picture(sheep, str(sheep), RULE)
    assert short_side([sheep]) == 0


@pytest.mark.parametrize("kind", ["JPEG", "MPO", "PNG", "BMP", "GIF", "WEBP", "TIFF", "PPM"])
def test_every_documented_format_is_read(kind: str, tmp_path: Path) -> None:
    picture = scene(80, 64)
    extra = {"save_all": True, "append_images": [scene(80, 64, 1)]} if kind == "MPO" else {}
    picture.save(tmp_path / "a.jpg", kind, **extra)
    read = fit_picture(tmp_path / "a.jpg", "a", RULE).astype(int)
    assert np.abs(read - in_one_step(picture)).mean() < 12  # a GIF has 256 colours


def test_no_other_code_opens_pictures_with_all_of_pillows_decoders() -> None:
    source = Path(pictures.__file__).parents[1]
    openings = [
        (path.name, line)
        for path in source.rglob("*.py")
        for line in path.read_text().splitlines()
        if "Image.open(" in line
    ]
    assert {name for name, _ in openings} == {"jpeg.py", "pictures.py"}
    assert all("formats=" in line for _, line in openings)


# Size


@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA", "LA", "P", "1", "CMYK"])
@pytest.mark.parametrize("size", [(300, 200), (4096, 260), (640, 1000)])
def test_a_picture_of_ordinary_size_is_resized_in_one_step_bit_for_bit(mode: str, size: tuple[int, int]) -> None:
    picture = scene(*size).convert(mode)
    if mode in ("RGBA", "LA"):
        picture.putalpha(scene(*size, seed=1).convert("L"))
    assert np.array_equal(fit_picture(picture, "a", RULE), in_one_step(picture))


def test_a_photograph_of_ordinary_size_is_decoded_in_full(tmp_path: Path) -> None:
    scene(4096, 1000).save(tmp_path / "a.jpg")
    with Image.open(tmp_path / "a.jpg") as photograph:
        assert np.array_equal(fit_picture(tmp_path / "a.jpg", "a", RULE), in_one_step(photograph))


@pytest.mark.parametrize("mode", ["RGB", "RGBA", "P", "L"])
def test_a_larger_picture_is_reduced_first_and_looks_the_same(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    picture = scene(5000, 2600).convert(mode)
    if mode == "RGBA":
        picture.putalpha(scene(5000, 2600, seed=1).convert("L"))
    if mode == "P":
        picture.info["transparency"] = 3
    seen = []
    whole = pictures._rgb
    monkeypatch.setattr(pictures, "_rgb", lambda image: seen.append(image.size) or whole(image))
    reduced = fit_picture(picture, "a", RULE).astype(int)
    assert seen == [(500, 260)]
    assert np.abs(reduced - in_one_step(picture)).mean() < 1.5


def test_a_larger_photograph_is_decoded_at_a_fraction_and_turned(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    picture = scene(5000, 2600)
    picture.save(tmp_path / "a.jpg", exif=exif, quality=95)
    turned = ImageOps.exif_transpose(Image.open(tmp_path / "a.jpg"))
    held: list[int] = []
    budget = PixelBudget(2**27)
    whole = budget.holding
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(budget, "holding", lambda pixels: held.append(pixels) or whole(pixels))
        patch.setattr(pictures, "_budget", budget)
        read = fit_picture(tmp_path / "a.jpg", "a", RULE).astype(int)
    assert held == [625 * 325]
    assert np.abs(read - in_one_step(turned)).mean() < 1.5


# How many at a time


def test_readers_together_hold_no_more_pixels_than_the_budget_and_one_picture_always_passes() -> None:
    budget, most, lock, now, held = PixelBudget(100), [0], threading.Lock(), [0], []

    def read(pixels: int) -> None:
        with budget.holding(pixels):
            with lock:
                now[0] += pixels
                held.append(now[0])
            time.sleep(0.001)
            with lock:
                now[0] -= pixels

    sizes = [30, 40, 50, 60, 70, 500] * 5
    threads = [threading.Thread(target=read, args=[size]) for size in sizes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(held) == len(sizes) and most == [0]
    assert all(total <= 100 or total == 500 for total in held)
    assert budget.held == 0


def test_files_are_decoded_within_the_budget_and_a_broken_one_gives_back_what_it_took(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = PixelBudget(64 * 64)
    monkeypatch.setattr(pictures, "_budget", budget)
    seen = []
    whole = pictures._fit
    monkeypatch.setattr(pictures, "_fit", lambda image, rule: seen.append(budget.held) or whole(image, rule))
    buffer = io.BytesIO()
    scene(64, 64).save(buffer, "PNG")
    (tmp_path / "broken.png").write_bytes(buffer.getvalue()[:-40])
    scene(64, 64).save(tmp_path / "whole.png")
    scene(100, 90).save(tmp_path / "more_than_the_budget.png")
    with pytest.raises(OarlockError, match=r"broken\.png: not a readable image"):
        fit_picture(tmp_path / "broken.png", str(tmp_path / "broken.png"), RULE)
    for name in ("whole.png", "more_than_the_budget.png"):
        fit_picture(tmp_path / name, name, RULE)
    assert seen[-2:] == [64 * 64, 90 * 100] and budget.held == 0


def test_large_files_are_decoded_one_after_the_other_in_one_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread keeps memory for the largest that it had, so that not each of them may have had a large one."""
    monkeypatch.setattr(pictures, "_ORDINARY", 90)
    seen: dict[int, set[int]] = {}
    whole = pictures._fit
    monkeypatch.setattr(
        pictures,
        "_fit",
        lambda image, rule: seen.setdefault(image.width, set()).add(threading.get_ident()) or whole(image, rule),
    )
    for number in range(8):
        scene(200, 200).save(tmp_path / f"large {number}.png")
        scene(80, 80).save(tmp_path / f"small {number}.png")
    files = sorted(tmp_path.glob("*.png"))
    read = [picture for _, picture in read_files(files, RULE, 8)]
    assert all(isinstance(picture, np.ndarray) for picture in read)
    assert len(seen[200]) == 1 and not seen[200] & seen[80]


def test_a_header_is_all_that_is_read_of_a_picture_that_was_opened(tmp_path: Path) -> None:
    scene(640, 480).save(tmp_path / "a.png")
    with open_picture(tmp_path / "a.png") as picture:
        assert picture.size == (640, 480)
