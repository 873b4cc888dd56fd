"""What is kept for thresholds: copies and groups on one side, others as ever; and the share that is promised."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from conftest import Command, make_task
from modelfile.conftest import SMALL, write_classes
from oarlock import Learner
from oarlock.errors import OarlockError
from oarlock.memory import fair_quota
from oarlock.nets.trunks import Trunk
from oarlock.tasks import CALIBRATE_FROM, calibration_limit, hold_out, sure_rank
from oarlock.training import generator


def as_it_was(labels: Tensor, share: float, seed: int, task: int, before: Tensor | None = None) -> Tensor:
    """The split before there were groups, on which published numbers depend."""
    counts = labels.bincount().tolist()
    wanted = torch.tensor([max(int(share * n + 1e-9), int(share > 0 and n >= CALIBRATE_FROM)) for n in counts])
    quota = fair_quota(wanted if before is None else torch.cat([before, wanted]), calibration_limit(len(labels)))
    held = torch.zeros(len(labels), dtype=torch.bool)
    for label in labels.unique():
        rows = torch.nonzero(labels == label).flatten()
        order = torch.randperm(len(rows), generator=generator(seed, task, "calibration", int(label)))
        held[rows[order[: min(int(wanted[label]), quota)]]] = True
    return held


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5])
def test_without_copies_the_split_is_bit_for_bit_what_it_was(seed: int, share: float) -> None:
    labels = torch.randint(0, 5, (700,), generator=torch.Generator().manual_seed(seed))
    before = torch.tensor([300, 20]) if seed % 2 else None
    expected = as_it_was(labels, share, seed, 2, before)
    assert torch.equal(hold_out(labels, share, seed, 2, before), expected)
    assert torch.equal(hold_out(labels, share, seed, 2, before, np.arange(700)), expected)


@pytest.mark.parametrize("seed", range(5))
def test_groups_stay_on_one_side_and_every_class_gives_its_share(seed: int) -> None:
    random = np.random.default_rng(seed)
    labels, groups = torch.from_numpy(random.integers(0, 4, 400)), random.integers(0, 150, 400)  # across classes too
    held = hold_out(labels, 0.2, seed, 0, groups=groups).numpy()
    assert all(len(set(held[groups == group].tolist())) == 1 for group in set(groups.tolist()))
    counts = labels.bincount()
    assert (labels[torch.from_numpy(held)].bincount(minlength=4) <= (0.2 * counts).int()).all()
    assert (labels[torch.from_numpy(held)].bincount(minlength=4) >= 0.1 * counts).all()


def test_a_class_of_large_groups_gives_the_smallest_that_leaves_half_of_it() -> None:
    labels = torch.tensor([0] * 20 + [1] * 20)
    groups = np.array([0] * 8 + [1] * 5 + [2] * 7 + [3] * 12 + [4] * 8)
    assert hold_out(labels, 0.1, 0, 0, groups=groups).nonzero().flatten().tolist() == [*range(8, 13), *range(32, 40)]
    whole = np.array([0] * 20 + [1] * 20)
    assert not hold_out(labels, 0.1, 0, 0, groups=whole).any()


def test_a_learner_trains_on_no_copy_of_what_it_keeps_for_thresholds(tiny_trunk: Trunk) -> None:
    images, labels = make_task(["a", "b"], 20)
    twice = np.concatenate([images, images])
    prepared = Learner("oar", trunk=tiny_trunk, calibration=0.2).prepare_task(twice, [*labels, *labels])
    kept = {image.numpy().tobytes() for image in prepared.calibration}
    trained = {image.numpy().tobytes() for image in prepared.task.images}
    assert len(prepared.calibration) == 16 and prepared.copies == 40
    assert not kept & trained
    assert prepared.images == [40, 40]


def test_named_groups_are_on_one_side(tiny_trunk: Trunk) -> None:
    images, labels = make_task(["a", "b"], 20)
    groups = [f"scene {row // 2}" for row in range(40)]
    learner = Learner("oar", trunk=tiny_trunk, calibration=0.2)
    prepared = learner.prepare_task(images, labels, groups=groups)
    pixels = [image.transpose(2, 0, 1).tobytes() for image in images]
    kept = sorted(pixels.index(image.numpy().tobytes()) for image in prepared.calibration)
    assert len(kept) == 8 and {row ^ 1 for row in kept} == set(kept)
    with pytest.raises(OarlockError, match="40 images but 3 groups"):
        learner.learn(images, labels, groups=["a", "b", "c"])
    assert learner.tasks_ == []


def test_a_class_that_is_one_group_is_named(tiny_trunk: Trunk) -> None:
    images, labels = make_task(["a", "b"], 10)
    learner = Learner("oar", trunk=tiny_trunk)
    with pytest.warns(UserWarning, match="class 'b' is one group or copies, so none is kept for thresholds"):
        learner.prepare_task(images, labels, groups=[name if name == "b" else row for row, name in enumerate(labels)])


@pytest.fixture
def settings() -> list[Any]:
    return [part for key, value in SMALL.items() for part in ("--set", f"{key}={value}")]


def test_the_command_reports_copies_and_groups_by_names(
    oarlock: Command, here: Path, settings: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    write_classes(here / "photos", "crow", "duck", count=12)
    for number in range(3):
        (here / f"photos/crow/again {number}.png").write_bytes((here / f"photos/crow/{number}.png").read_bytes())
    common = ["photos", "--trunk", "vit_pico", "--memory", 6, *settings]
    assert oarlock("learn", "a.oar", *common) == 0
    assert "copies: 3 images are copies of others" in " ".join(capsys.readouterr().out.split())
    for name in ("crow", "duck"):
        for burst in range(3):
            (here / f"photos/{name}/burst{burst}").mkdir()
            for number in range(4):
                file = here / f"photos/{name}/{4 * burst + number}.png"
                file.rename(here / f"photos/{name}/burst{burst}/{number}.png")
        for path in (here / "photos" / name).glob("again*"):
            path.unlink()
    assert oarlock("learn", "b.oar", *common, "--group-by", "folder", "--json") == 0
    assert '"of_this_task": 8' in capsys.readouterr().out  # of each class one burst
    assert oarlock("learn", "c.oar", *common, "--group-by", "colour") == 2
    assert "--group-by colour: choose one of folder, prefix" in capsys.readouterr().err


# What the share promises


@pytest.mark.parametrize(("images", "accept"), [(20, 0.95), (45, 0.95), (100, 0.95), (200, 0.9), (1000, 0.99)])
def test_on_average_at_least_the_promised_share_reaches_the_threshold(images: int, accept: float) -> None:
    """The share that reaches the n-th smallest of N scores is on average 1 - n / (N + 1), whatever they are."""
    assert 1 - (sure_rank(images, accept) + 1) / (images + 1) >= accept
    scores = np.random.default_rng(0).gumbel(size=(4000, images))
    lines = np.sort(scores, axis=1)[:, sure_rank(images, accept)]
    reached = 1 - np.exp(-np.exp(-lines))
    assert reached.mean() >= accept - 0.002


def test_fewer_than_19_images_are_too_few_for_95_percent_and_the_page_says_so() -> None:
    assert sure_rank(18, 0.95) == 0 and 1 - 1 / 19 < 0.95 <= 1 - 1 / 20
    page = (Path(__file__).parents[1] / "docs/how-to/what-is-unknown.md").read_text()
    assert "fewer than 19" in " ".join(page.split())
