"""The input size: given, or chosen by the first task's images, and kept."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from conftest import make_task
from oarlock import Learner, OarlockError, load
from oarlock.data.images import short_side
from oarlock.nets.trunks import load_trunk

LITE = "efficientnet_lite0"


@pytest.mark.parametrize(("pixels", "size"), [(32, 128), (128, 128), (130, 160), (200, 224), (224, 224), (1000, 224)])
def test_a_lite_takes_what_images_have_between_what_is_too_small_and_what_it_was_trained_at(
    pixels: int, size: int
) -> None:
    assert load_trunk(LITE).size_for(pixels) == size


def test_other_trunks_keep_their_own() -> None:
    assert load_trunk("vit_pico").size_for(500) == 32


def test_the_first_task_decides_and_the_model_keeps_it(tmp_path: Path) -> None:
    learner = Learner("slda", trunk=LITE)
    learner.learn(*make_task(["a", "b"], 2, size=148))
    assert learner.trunk.size == 160
    learner.learn(*make_task(["c", "d"], 2, size=40))
    assert learner.trunk.size == 160
    learner.save(tmp_path / "model.oar")
    assert load(tmp_path / "model.oar").trunk.size == 160


def test_a_size_that_was_given_stays() -> None:
    assert Learner("slda", trunk=LITE, size=96).learn(*make_task(["a", "b"], 2, size=200)).trunk.size == 96
    trunk = load_trunk(LITE, size=64)
    assert Learner("slda", trunk=trunk).learn(*make_task(["a", "b"], 2, size=200)).trunk is trunk
    with pytest.raises(OarlockError, match="100"):
        Learner("slda", trunk=LITE, size=100)


def test_the_short_side_is_the_median_of_what_can_be_read(tmp_path: Path) -> None:
    for number, size in enumerate([(50, 90), (70, 40), (60, 60)]):
        Image.new("RGB", size).save(tmp_path / f"{number}.png")
    paths = sorted(tmp_path.glob("*.png"))
    assert short_side(tmp_path) == short_side(paths) == 50
    (tmp_path / "3.png").write_text("no image")
    assert short_side(sorted(tmp_path.glob("*.png"))) == 50
    assert short_side([tmp_path / "3.png"]) == 0
    assert short_side([Image.new("L", (20, 30)), np.zeros((3, 25, 40), np.uint8), np.zeros((22, 22))]) == 22
