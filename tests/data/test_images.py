from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import Dataset, IterableDataset, TensorDataset
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Resize

from oarlock.data.images import Preprocessing, checked_labels, prepare, read_labelled
from oarlock.errors import OarlockError

HALF = (0.5, 0.5, 0.5)
RULE = Preprocessing(size=8, resize=8, mean=HALF, std=HALF)
CROPPED = Preprocessing(size=8, resize=11, mean=HALF, std=HALF)


def noise(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)


def channels_first(images: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.ascontiguousarray(images.transpose(0, 3, 1, 2)))


class Items(Dataset):
    def __init__(self, items: list) -> None:
        self.items = items
        self.reads = 0

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> object:
        self.reads += 1
        return self.items[index]  # no IndexError of its own beyond the end is promised by torch


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, count in (("cat", 3), ("ant", 2)):
        (tmp_path / name).mkdir()
        for i in range(count):
            Image.fromarray(noise(10 + i, 12, 3, seed=i)).save(tmp_path / name / f"{i}.png")
    return tmp_path


# Arrays


@pytest.mark.parametrize("count", [1, 64, 65, 130])
def test_an_array_of_the_right_size_is_bit_exact_whatever_its_layout(count: int) -> None:
    images = noise(count, 8, 8, 3)
    expected = channels_first(images)
    for form in (images, images.transpose(0, 3, 1, 2), expected, torch.from_numpy(images), list(images)):
        assert torch.equal(prepare(form, RULE), expected)


def test_the_right_size_is_taken_as_it_is_so_preparing_twice_changes_nothing() -> None:
    once = prepare(noise(3, 20, 30, 3), CROPPED)
    assert torch.equal(prepare(once, CROPPED), once)
    assert once.dtype == torch.uint8 and once.is_contiguous()


def test_the_result_is_a_copy() -> None:
    images = noise(2, 8, 8, 3)
    prepare(images, RULE).zero_()
    assert images.any()


@pytest.mark.parametrize("size", [8, 13])
def test_grey_images_become_three_equal_channels(size: int) -> None:
    grey = noise(4, size, size)
    prepared = prepare(grey, RULE)
    assert torch.equal(prepared[:, 0], prepared[:, 1]) and torch.equal(prepared[:, 0], prepared[:, 2])
    for form in (grey[..., None], grey[:, None], torch.from_numpy(grey), list(grey)):
        assert torch.equal(prepare(form, RULE), prepared)


def test_rgba_is_laid_on_white() -> None:
    images = np.full((2, 8, 8, 4), 100, dtype=np.uint8)
    images[0, ..., 3], images[1, ..., 3] = 0, 255
    prepared = prepare(images, RULE)
    assert (prepared[0] == 255).all() and (prepared[1] == 100).all()
    assert torch.equal(prepare([Image.fromarray(x) for x in images], RULE), prepared)
    assert torch.equal(prepare(channels_first(images), RULE), prepared)


@given(seed=st.integers(0, 2**31), kind=st.sampled_from(["float16", "float32", "float64"]))
@settings(max_examples=20, deadline=None)
def test_floats_of_all_widths_round_back_to_the_bytes_they_came_from(seed: int, kind: str) -> None:
    images = noise(2, 8, 8, 3, seed=seed)
    assert torch.equal(prepare((images / 255).astype(kind), RULE), channels_first(images))


def test_float_tensors_are_accepted_with_gradients_and_as_bfloat16() -> None:
    white = torch.ones(2, 3, 8, 8, requires_grad=True)
    assert (prepare(white, RULE) == 255).all()
    assert (prepare(white.bfloat16(), RULE) == 255).all()


@pytest.mark.parametrize("bad", [np.nan, -0.01, 1.01, np.inf])
@pytest.mark.parametrize("index", [0, 70])
def test_floats_outside_the_range_name_the_first_bad_image(bad: float, index: int) -> None:
    images = np.zeros((80, 8, 8, 3), dtype=np.float32)
    images[index:, 3, 3, 1] = bad
    for form in (images, list(images), torch.from_numpy(images)):
        with pytest.raises(OarlockError, match=rf"image {index}: .*0\.\.1"):
            prepare(form, RULE)


@pytest.mark.parametrize("kind", ["int64", "int8", "uint16", "bool", "object", "complex64", "U3"])
def test_other_types_of_pixels_are_refused(kind: str) -> None:
    images = np.zeros((2, 8, 8, 3)).astype(kind)
    with pytest.raises(OarlockError, match="convert them to uint8"):
        prepare(images, RULE)
    with pytest.raises(OarlockError, match=r"image 0: .*convert them to uint8"):
        prepare(list(images), RULE)


@pytest.mark.parametrize("shape", [(8,), (2, 8, 8, 2), (2, 8, 8, 5), (1, 2, 8, 8, 3)])
def test_shapes_that_are_no_images_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(OarlockError, match=r"none of \[N, H, W\]"):
        prepare(noise(*shape), RULE)


def test_one_image_in_place_of_many_is_refused_not_misread() -> None:
    for one in (noise(8, 8, 3), noise(8, 8, 1), torch.zeros(3, 8, 8, dtype=torch.uint8)):
        with pytest.raises(OarlockError, match="put it in a list"):
            prepare(one, RULE)
        assert prepare([one], RULE).shape == (1, 3, 8, 8)
    with pytest.raises(OarlockError, match=r"image 1: .*none of \[H, W\]"):
        prepare([noise(8, 8, 3), noise(1, 8, 8, 3)], RULE)


@pytest.mark.parametrize(
    "nothing", [[], (), np.zeros((0, 8, 8, 3), np.uint8), np.array([]), torch.zeros(0, 3, 8, 8), Items([])]
)
def test_no_images_are_refused(nothing: object) -> None:
    with pytest.raises(OarlockError, match="no images were given"):
        prepare(nothing, RULE)


# Pictures and files


@pytest.mark.parametrize("width, height", [(20, 30), (30, 20), (9, 8), (8, 9), (5, 5), (33, 12), (11, 11)])
def test_resizing_and_cropping_agree_with_torchvision(width: int, height: int) -> None:
    picture = Image.fromarray(noise(height, width, 3))
    steps = [Resize(CROPPED.resize, InterpolationMode.BICUBIC), CenterCrop(CROPPED.size)]
    expected = np.asarray(Compose(steps)(picture))
    assert np.array_equal(prepare([picture], CROPPED)[0].permute(1, 2, 0), expected)


def test_an_image_gives_the_same_result_in_every_form(tmp_path: Path) -> None:
    pixels = noise(21, 34, 3)
    path = tmp_path / "a.png"
    Image.fromarray(pixels).save(path)
    forms = [Image.fromarray(pixels), path, str(path), pixels, torch.from_numpy(pixels), pixels / 255]
    prepared = prepare(forms, CROPPED)
    assert all(torch.equal(image, prepared[0]) for image in prepared)
    for alone in (path, str(path), [path], pixels[None]):
        assert torch.equal(prepare(alone, CROPPED)[0], prepared[0])


@pytest.mark.parametrize(
    "mode", ["1", "L", "P", "RGB", "RGBA", "RGBX", "CMYK", "YCbCr", "LAB", "HSV", "I", "F", "LA", "PA", "I;16"]
)
def test_pictures_of_every_mode_are_read(mode: str) -> None:
    assert prepare([Image.new(mode, (9, 12))], RULE).shape == (1, 3, 8, 8)


def test_a_palette_with_a_transparent_colour_is_laid_on_white() -> None:
    picture = Image.new("P", (8, 8), 0)
    picture.info["transparency"] = 0
    assert (prepare([picture], RULE) == 255).all()


@pytest.mark.parametrize("kind", ["uint16", "int32"])
def test_sixteen_bit_greys_are_scaled_not_clipped(kind: str) -> None:
    deep = np.full((8, 8), 100 * 257).astype(kind)
    assert (prepare([Image.fromarray(deep)], RULE) == 100).all()


def test_a_photograph_taken_sideways_is_turned(tmp_path: Path) -> None:
    pixels = np.zeros((8, 8, 3), dtype=np.uint8)
    pixels[0] = 255
    exif = Image.Exif()
    exif[0x0112] = 6  # to be shown turned clockwise by a quarter
    Image.fromarray(pixels).save(tmp_path / "a.png", exif=exif)
    turned = prepare(tmp_path / "a.png", RULE)[0, 0]
    assert (turned[:, -1] == 255).all() and (turned[:, :-1] == 0).all()
    with Image.open(tmp_path / "a.png") as picture:
        assert torch.equal(prepare([picture], RULE)[0, 0], turned)


def test_a_folder_gives_all_images_below_it_sorted_and_nothing_else(folder: Path) -> None:
    (folder / "notes.txt").write_text("not an image")
    (folder / ".hidden").mkdir()
    (folder / ".hidden" / "0.png").write_text("not an image")
    (folder / "cat" / "deep").mkdir()
    Image.fromarray(noise(9, 9, 3)).save(folder / "cat" / "deep" / "UPPER.JPEG")
    names = ["ant/0.png", "ant/1.png", "cat/0.png", "cat/1.png", "cat/2.png", "cat/deep/UPPER.JPEG"]
    expected = prepare([folder / name for name in names], RULE)
    assert torch.equal(prepare(folder, RULE), expected)
    assert torch.equal(prepare(str(folder), RULE), expected)


def test_many_files_keep_their_order(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(150)]
    for i, path in enumerate(paths):
        Image.new("L", (8 + i % 7, 8), i).save(path)
    assert prepare(paths, RULE)[:, 0, 4, 4].tolist() == list(range(150))


def test_the_same_lazily_opened_picture_may_be_given_many_times(tmp_path: Path) -> None:
    Image.fromarray(noise(300, 300, 3)).save(tmp_path / "a.png")
    with Image.open(tmp_path / "a.png") as picture:
        prepared = prepare([picture] * 20, RULE)
    assert all(torch.equal(image, prepared[0]) for image in prepared)


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    whole = tmp_path / "whole.jpg"
    Image.fromarray(noise(64, 64, 3)).save(whole)
    (tmp_path / "text.png").write_text("not an image")
    (tmp_path / "cut.jpg").write_bytes(whole.read_bytes()[:900])
    (tmp_path / "empty.png").touch()
    for name in ("text.png", "cut.jpg", "empty.png"):
        for images in (tmp_path / name, [whole, tmp_path / name], [noise(8, 8, 3), tmp_path / name]):
            with pytest.raises(OarlockError, match=rf"{name}: not a readable image"):
                prepare(images, RULE)
    with pytest.raises(OarlockError, match=r"gone\.png: no such file"):
        prepare([whole, tmp_path / "gone.png"], RULE)
    with pytest.raises(OarlockError, match="gone: no such file or folder"):
        prepare(tmp_path / "gone", RULE)


def test_the_first_unreadable_file_is_the_one_named(tmp_path: Path) -> None:
    paths = [tmp_path / f"{i}.png" for i in range(100)]
    with pytest.raises(OarlockError, match=r"/0\.png: no such file"):
        prepare(paths, RULE)


def test_a_folder_without_images_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OarlockError, match=r"no images in this folder; accepted are \.bmp"):
        prepare(tmp_path, RULE)


@pytest.mark.parametrize("images", [None, 3, {1: 2}, (x for x in [1]), Image.new("RGB", (8, 8))])
def test_what_is_no_collection_of_images_is_refused(images: object) -> None:
    with pytest.raises(OarlockError, match=r"images are a .*pass a uint8 array"):
        prepare(images, RULE)


def test_a_hair_of_an_image_is_refused_before_it_fills_the_memory() -> None:
    for form in ([Image.new("RGB", (10_000_000, 1))], noise(1, 1, 10_000)):
        with pytest.raises(OarlockError, match="too narrow; crop it first"):
            prepare(form, RULE)


def test_an_item_that_is_no_image_is_named() -> None:
    with pytest.raises(OarlockError, match="image 1 is a float"):
        prepare([noise(8, 8, 3), 1.5], RULE)


# Data sets


def test_data_sets_of_images_and_of_pairs_are_read() -> None:
    images = noise(5, 8, 8, 3)
    expected = channels_first(images)
    pictures = [Image.fromarray(x) for x in images]
    for dataset in (Items(pictures), Items([(x, "a") for x in pictures]), TensorDataset(expected)):
        assert torch.equal(prepare(dataset, RULE), expected)


def test_a_data_set_that_cannot_be_indexed_is_refused() -> None:
    class Endless(IterableDataset):
        def __iter__(self) -> object:
            return iter([noise(8, 8, 3)])

    for dataset in (Endless(), Dataset()):
        with pytest.raises(OarlockError, match="a Dataset with indices and a length"):
            prepare(dataset, RULE)


def test_pairs_bring_their_labels_and_each_item_is_read_once() -> None:
    images = noise(4, 8, 8, 3)
    dataset = Items([(x, label) for x, label in zip(images, "abba", strict=True)])
    prepared, labels = read_labelled(dataset, None, RULE)
    assert torch.equal(prepared, channels_first(images))
    assert labels == ["a", "b", "b", "a"] and dataset.reads == 4
    assert read_labelled(TensorDataset(prepared, torch.arange(4)), None, RULE)[1] == [0, 1, 2, 3]


def test_given_labels_go_before_those_of_a_data_set() -> None:
    dataset = Items([(x, "a") for x in noise(2, 8, 8, 3)])
    assert read_labelled(dataset, ["b", "c"], RULE)[1] == ["b", "c"]


@pytest.mark.parametrize("item", [noise(8, 8, 3), (noise(8, 8, 3),), (noise(8, 8, 3), "a", "b")])
def test_a_data_set_without_pairs_needs_labels(item: object) -> None:
    with pytest.raises(OarlockError, match=r"item 0 .* not an \(image, label\) pair"):
        read_labelled(Items([item]), None, RULE)


# Labels


@pytest.mark.parametrize(
    "labels, expected",
    [
        (["a", "b"], ["a", "b"]),
        ((1, 0), [1, 0]),
        (np.array([3, 4], dtype=np.uint8), [3, 4]),
        (np.array(["x", "y"]), ["x", "y"]),
        (np.array(["x", "y"], dtype=object), ["x", "y"]),
        (torch.tensor([5, 6]), [5, 6]),
        ([np.int64(1), 2], [1, 2]),
    ],
)
def test_labels_become_plain_strings_and_integers(labels: object, expected: list) -> None:
    _, names = read_labelled(noise(2, 8, 8, 3), labels, RULE)
    assert names == expected and {type(name) for name in names} <= {str, int}


@pytest.mark.parametrize(
    "bad", [True, np.True_, 1.0, np.float32(2), float("nan"), None, b"a", torch.tensor(1.5), np.zeros(3)]
)
def test_other_labels_are_refused_by_position(bad: object) -> None:
    with pytest.raises(OarlockError, match=r"label 1 is 9223372036854775808: integers must fit into 64 bits"):
        checked_labels(np.array([5, 2**63], dtype=np.uint64))
    with pytest.raises(OarlockError, match="zero byte"):
        checked_labels(["a", "a\0"])
    with pytest.raises(OarlockError, match=r"label 1 is .*: use strings or integers"):
        read_labelled(noise(2, 8, 8, 3), [1, bad], RULE)


def test_strings_and_integers_are_not_mixed() -> None:
    with pytest.raises(OarlockError, match="label 1 is 'b' but label 0 is 1"):
        read_labelled(noise(2, 8, 8, 3), [1, "b"], RULE)


def test_lengths_that_differ_are_both_said() -> None:
    for images in (noise(3, 8, 8, 3), list(noise(3, 8, 8, 3)), Items(list(noise(3, 8, 8, 3)))):
        with pytest.raises(OarlockError, match="3 images but 2 labels"):
            read_labelled(images, ["a", "b"], RULE)


@pytest.mark.parametrize("labels", ["ab", 7, {"a", "b"}])
def test_labels_are_a_list(labels: object) -> None:
    with pytest.raises(OarlockError, match="pass a list with one label per image"):
        read_labelled(noise(2, 8, 8, 3), labels, RULE)


def test_arrays_need_labels() -> None:
    with pytest.raises(OarlockError, match="labels were not given"):
        read_labelled(noise(2, 8, 8, 3), None, RULE)


@pytest.mark.parametrize("nothing", [[], np.zeros((0, 8, 8, 3), np.uint8)])
def test_nothing_to_learn_is_refused(nothing: object) -> None:
    with pytest.raises(OarlockError, match="no images were given"):
        read_labelled(nothing, [], RULE)


def test_sub_folders_are_classes(folder: Path) -> None:
    prepared, labels = read_labelled(folder, None, RULE)
    assert labels == ["ant", "ant", "cat", "cat", "cat"]
    assert torch.equal(prepared, prepare(folder, RULE))


def test_a_folder_of_classes_is_checked(folder: Path) -> None:
    with pytest.raises(OarlockError, match="this image has no class"):
        read_labelled(folder / "ant", None, RULE)
    with pytest.raises(OarlockError, match="not a folder"):
        read_labelled(folder / "ant" / "0.png", None, RULE)
    (folder / "bee").mkdir()
    with pytest.raises(OarlockError, match="bee: no images in this folder"):
        read_labelled(folder, None, RULE)
    with pytest.raises(OarlockError, match="no class sub-folders"):
        read_labelled(folder / "bee", None, RULE)


@pytest.mark.parametrize("size, resize", [(0, 8), (-1, 8), (9, 8)])
def test_a_crop_larger_than_the_image_is_refused(size: int, resize: int) -> None:
    with pytest.raises(OarlockError, match="0 < size <= resize"):
        Preprocessing(size=size, resize=resize, mean=HALF, std=HALF)


@pytest.mark.parametrize("nothing", [np.array(5, np.uint8), torch.tensor(5, dtype=torch.uint8)])
def test_a_single_number_is_no_image(nothing) -> None:
    with pytest.raises(OarlockError, match="shape"):
        prepare(nothing, RULE)


@pytest.mark.parametrize("labels", [np.array(3), 5, "cat"])
def test_a_single_label_is_no_list_of_labels(labels) -> None:
    with pytest.raises(OarlockError, match="labels are"):
        read_labelled(np.zeros((1, 8, 8, 3), np.uint8), labels, RULE)
