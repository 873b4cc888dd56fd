"""Protocols: the paper's table, whether data is whole, and runs by name."""

import argparse
import hashlib
import json
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

from conftest import Command, make_images
from data.datasets.test_datasets import WNIDS, pack, tiny_files
from experiments.test_run import OPTIONS, assert_same_run
from oarlock import OarlockError
from oarlock.data.datasets import datasets
from oarlock.experiments import protocols
from oarlock.experiments import series as several
from oarlock.experiments.config import RunConfig, full_config, saved_config
from oarlock.experiments.protocols import DEIT, PAPER, PROTOCOLS, UNSEEN, PerClass, Protocol, run_settings
from oarlock.methods import configure, methods
from oarlock.methods.row import Row
from oarlock.nets.trunks import load_trunk

QUICK = [part for key, value in OPTIONS.items() for part in ("--set", f"{key}={value}")]
TABLE = {  # facts of the paper: data, tasks × classes, memory, adapter width, lr, epochs
    "c10-5t": ("cifar10", 5, 2, 200, 64, 0.005, 20),
    "c100-10t": ("cifar100", 10, 10, 2000, 128, 0.001, 40),
    "c100-20t": ("cifar100", 20, 5, 2000, 128, 0.005, 40),
    "t-5t": ("tiny-imagenet", 5, 40, 2000, 128, 0.005, 15),
    "t-10t": ("tiny-imagenet", 10, 20, 2000, 128, 0.005, 10),
}


@pytest.fixture(autouse=True)
def _in_an_empty_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")


def archive(path: Path, train: int = 12, test: int = 6, *, classes: int = 10, fewer: int = 0) -> Path:
    """CIFAR-10 in small; the last class has `fewer` images to train on."""
    counts = [train] * (classes - 1) + [train - fewer]
    numbers = range(classes)
    np.savez(
        path,
        train_x=np.concatenate([make_images(n, max(counts), 32)[: counts[n]] for n in numbers]),
        train_y=np.repeat(numbers, counts),
        test_x=np.concatenate([make_images(n, test, 32, seed=1) for n in numbers]),
        test_y=np.repeat(numbers, test),
        classes=np.array(datasets.find("cifar10").classes[:classes]),
    )
    return path


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return archive(tmp_path_factory.mktemp("data") / "cifar.npz")


def whole(train: int, test: int) -> Protocol:
    """c10-5t on a CIFAR-10 that is whole with so many images of a class."""
    return replace(PAPER["c10-5t"], data=replace(datasets.find("cifar10"), train=train, test=test))


def mini(train: int, test: int) -> Protocol:
    return replace(PROTOCOLS["c10-5t-mini"], images=PerClass(train, test))


# What they are


@pytest.mark.parametrize("name", TABLE)
def test_the_paper_s_protocols_are_those_of_its_table(name: str) -> None:
    protocol, (data, tasks, per_task, memory, width, lr, epochs) = PAPER[name], TABLE[name]
    assert (protocol.data.name, protocol.tasks, protocol.classes_per_task) == (data, tasks, per_task)
    assert (protocol.memory, protocol.trunk, protocol.images, protocol.chosen) == (memory, DEIT, None, None)
    assert protocol.classes == len(protocol.data.classes)
    assert run_settings(name, memory="half")["memory"] == memory // 2
    for method, cls in methods.all().items():
        config = asdict(configure(cls, protocol.options(method)))
        assert config.get("width", width) == width and config.get("adapt_last") is None
        assert config.get("grow_below", 0) == 0
        if method not in ("l2p", "pass"):  # which have their authors' own
            assert [config.get(key, value) for key, value in (("lr", lr), ("epochs", epochs))] == [lr, epochs]
        assert config.get("gate_lr", lr) == lr  # one rate for all, as in the paper
    row = configure(methods.find("row"), protocol.options("row"))
    assert (row.lr, row.gate_lr, row.head_lr, row.momentum, row.weight_decay, row.optimiser) == (
        lr,
        lr,
        lr,
        0.9,
        0,
        "sgd",
    )
    assert (row.epochs, row.wp_epochs, row.ood_epochs, row.batch, row.head_batch) == (epochs, 5, 10, 64, 32)
    assert (row.s_max, row.lamb, row.tau, row.shrinkage, row.gamma) == (500, 0.75, 5, 0.2, 1)
    hal = configure(methods.find("hal"), protocol.options("hal"))
    assert (hal.lamb, hal.beta, hal.gamma) == (0.1, 0.5, 0.1)  # other things of the same names


def test_the_small_ones_have_the_same_shape_on_the_bundled_trunk() -> None:
    sizes = {"c10": PerClass(500, 200), "c100": PerClass(200, 50), "t": PerClass(80, 20)}
    for name, big in PAPER.items():
        small = PROTOCOLS[f"{name}-mini"]
        assert (small.data, small.tasks, small.memory) == (big.data, big.tasks, big.memory)
        assert small.trunk == "vit_pico" and small.images == sizes[name.split("-")[0]]
        assert small.classes == (90 if name.startswith("t-") else big.classes)
        for method, cls in methods.all().items():
            config = asdict(configure(cls, small.options(method)))
            assert config.get("gate_lr", 0.03) == 0.03  # not searched with lr
        assert all(small.options(variant) == small.options("row") for variant in Row.variants)
    lite, mini = PROTOCOLS["c10-5t-lite"], PROTOCOLS["c10-5t-mini"]
    assert lite.trunk == "efficientnet_lite0" and replace(lite, trunk=mini.trunk, settings=mini.settings) == mini
    assert len(PROTOCOLS) == 11


def test_the_90_classes_are_the_first_that_the_bundled_trunk_never_saw() -> None:
    card = json.loads((Path(protocols.__file__).parents[1] / "nets/weights/vit_pico.json").read_text())
    trunk = load_trunk("vit_pico").card
    unseen = {e["wnid"]: e["words"] for e in card["excluded"] if trunk.overlap([e["words"]]) == "no"}
    assert len(card["excluded"]) == 93 and len(unseen) == 91
    assert list(UNSEEN) == sorted(unseen)[:90]
    assert not set(UNSEEN) & {e["wnid"] for e in card["classes"]}


SEARCHES = sorted((Path(__file__).parents[2] / "results" / "search").glob("*/*.json"))


@pytest.mark.parametrize("file", SEARCHES, ids=lambda file: f"{file.parent.name} {file.stem}")
def test_what_is_adopted_is_the_best_of_as_many_trials_as_every_method_had(file: Path) -> None:
    protocol, method = PROTOCOLS[file.parent.name], file.stem
    best, *others = json.loads(file.read_text())
    assert len(others) == (1 if method == "ncm" else 2)  # it has one switch
    assert all(best["aca"] >= trial.get("aca", 0) for trial in others)
    adopted = configure(methods.find(method), protocol.options(method))
    assert {name: getattr(adopted, name) for name in best["options"]} == best["options"]


def test_options_found_by_a_search_are_a_method_s_own(monkeypatch: pytest.MonkeyPatch) -> None:
    protocol = replace(mini(12, 6), settings="found")
    monkeypatch.setattr(Row, "settings", {**Row.settings, "found": {"lr": 0.01}})
    assert protocol.options("row") == {"lr": 0.01} and protocol.options("hat") == {}


# Data


def test_whole_data_is_taken_whole(small: Path) -> None:
    source = whole(12, 6).source(str(small))
    assert (len(source.train), len(source.test), source.partial) == (120, 60, False)


@pytest.mark.parametrize(
    ("expected", "found"),
    [
        (
            (5000, 1000),
            "has 12 train and 6 test images of a class, but 5,000 train and 1,000 test images are expected",
        ),
        ((12, 7), "12 train and 6 test images of a class, but 12 train and 7 test"),
    ],
)
def test_partial_data_is_refused_or_marked(small: Path, expected: tuple[int, int], found: str) -> None:
    with pytest.raises(OarlockError, match=rf"cifar\.npz: .*{found}.*--partial"):
        whole(*expected).source(str(small))
    source = whole(*expected).source(str(small), partial=True)
    assert source.partial and len(source.train) == 120
    with pytest.raises(OarlockError, match="but at least 5,000"):
        mini(5000, 6).source(str(small))


def test_one_class_with_fewer_images_is_noticed(tmp_path: Path) -> None:
    path = str(archive(tmp_path / "c.npz", fewer=1))
    with pytest.raises(OarlockError, match="has from 11 train and 6 test images to 12 train and 6 test images"):
        whole(12, 6).source(path)
    assert whole(12, 6).source(path, partial=True).partial


def test_more_images_than_there_are_is_another_data_set(small: Path) -> None:
    for partial in (False, True):
        with pytest.raises(
            OarlockError, match="has 12 train and 6 test images of a class, but CIFAR-10 has 11 train"
        ):
            whole(11, 6).source(str(small), partial)


@pytest.mark.parametrize(("fewer", "classes"), [(12, 10), (0, 9)])
def test_no_class_may_be_missing(tmp_path: Path, fewer: int, classes: int) -> None:
    path = str(archive(tmp_path / "c.npz", fewer=fewer, classes=classes))
    for protocol in (whole(12, 6), mini(4, 2)):
        for partial in (False, True):
            with pytest.raises(OarlockError, match=r"0 train|9 of the 10 classes"):
                protocol.source(path, partial)


def test_small_protocols_choose_the_same_images_every_time(small: Path) -> None:
    all_ = mini(12, 6).source(str(small))
    assert len(all_.train) == 120 and not all_.partial
    once, again = (mini(5, 2).source(str(small)) for _ in range(2))
    assert not once.partial and len(once.train) == 50 and len(once.test) == 20
    assert once.train.sha256() == again.train.sha256()
    kept = [int(np.flatnonzero((all_.train.images == image).all((1, 2, 3)))[0]) for image in once.train.images]
    first = sorted(range(12), key=lambda i: hashlib.sha256(f"airplane/{i}".encode()).digest())[:5]
    assert kept[:5] == sorted(first) and kept == sorted(kept)
    assert [sum(12 * n <= k < 12 * n + 12 for k in kept) for n in range(10)] == [5] * 10


def test_tiny_imagenet_s_classes_can_be_chosen_and_are_told_apart_by_wordnet_id(tmp_path: Path) -> None:
    path = pack(tiny_files(), tmp_path / "t.tar")
    tiny = replace(datasets.find("tiny-imagenet"), classes=tuple(sorted(WNIDS)))
    protocol = replace(PROTOCOLS["t-5t-mini"], data=tiny, tasks=2, images=PerClass(3, 2), chosen=sorted(WNIDS)[:2])
    source = protocol.source(str(path))
    assert source.classes == ("goldfish", "cat (n02123045)") and len(source.train) == 6
    card = replace(load_trunk().card, classes=("goldfish",), wnids=("n09999999",))
    assert card.overlap(list(source.classes)) == "yes" and card.overlap(list(source.classes), source.wnids) == "no"
    seen = replace(card, classes=("nothing like it",), wnids=("n02123045",))
    assert seen.overlap(list(source.classes)) == "no" and seen.overlap(list(source.classes), source.wnids) == "yes"
    assert type(card).from_json(json.loads(json.dumps(card.to_json()))) == card


# Runs


def test_a_configuration_holds_the_protocol_s_settings_in_full(small: Path) -> None:
    config = RunConfig(**run_settings("c100-10t", data=small), method="hat", options={"epochs": "3"})
    full = full_config(config)
    assert (full["source"], full["protocol"], full["increment"], full["trunk"]) == (str(small), "c100-10t", 10, DEIT)
    assert (full["memory"], full["calibration"]) == (2000, 0.0)
    assert (full["options"]["lr"], full["options"]["epochs"], full["options"]["width"]) == (0.001, 3, 128)
    assert full_config(RunConfig.from_json(full)) == full
    by_method = {
        c.method: c.all_options() for c in several.expand(replace(config, method="l2p,finetune", options={}))
    }
    assert by_method["l2p"]["lr"] == 0.0075 and by_method["finetune"]["lr"] == 0.001
    assert RunConfig(**run_settings("t-5t")).source == "tiny-imagenet"


def test_tasks_that_are_not_the_protocol_s_are_refused() -> None:
    settings = run_settings("c10-5t-mini")
    with pytest.raises(OarlockError, match="increment 5: the protocol has 2"):
        RunConfig(**{**settings, "increment": 5})
    with pytest.raises(OarlockError, match="names 2 classes"):
        RunConfig(**settings, order=["cat", "dog"])
    with pytest.raises(OarlockError, match="there is no protocol 'c11'"):
        RunConfig(**{**settings, "protocol": "c11"})


def run_arguments(small: Path, *more: object) -> list[object]:
    return ["run", "--protocol", "c10-5t-mini", "--data", small, "--threads", 1, "--out", "out", *more]


def test_a_run_by_name_says_what_it_ran_on_and_can_be_resumed(
    small: Path, oarlock: Command, capsys: pytest.CaptureFixture
) -> None:
    arguments = run_arguments(small, "--order", 1, "--partial", "--memory", "half", *QUICK)
    assert oarlock(*arguments) == 0
    result = json.loads(Path("out/result.json").read_text())
    assert (result["protocol"], result["partial"], result["memory"]) == ("c10-5t-mini", True, 100)
    assert result["images_per_class"] == {"train": [12, 12], "test": [6, 6]}
    assert result["tasks"][0] == ["frog", "bird"] and len(result["tasks"]) == 5
    assert result["overlap"] == "no" and result["trunk"] == "vit_pico"
    assert OPTIONS.items() <= result["config"].items()
    page = Path("out/report.html").read_text()
    assert "c10-5t-mini on partial data: train 12, test 6 images of a class" in page

    Path("out/result.json").unlink()
    before = Path("out/model.oar").read_bytes()
    assert oarlock("run", "--resume", "--out", "out") == 0
    assert Path("out/model.oar").read_bytes() == before
    assert oarlock(*arguments, "--resume") == 0
    capsys.readouterr()
    assert oarlock(*run_arguments(small, "--order", 1, "--partial", *QUICK), "--resume") == 2
    assert "has memory = 100, not 200" in capsys.readouterr().err
    assert saved_config(Path("out")).protocol == "c10-5t-mini"


def test_several_methods_by_name_each_with_its_own_options(small: Path, oarlock: Command, monkeypatch) -> None:
    own = {"found": {"epochs": 1, "width": 8, "adapt_last": 1}}
    monkeypatch.setattr(methods.find("finetune"), "settings", own)
    monkeypatch.setitem(PROTOCOLS, "c10-5t-mini", replace(mini(8, 4), settings="found"))
    assert oarlock(*run_arguments(small, "--method", "slda,finetune")) == 0
    results = [json.loads(Path("out", name, "result.json").read_text()) for name in ("slda", "finetune")]
    assert [result["protocol"] for result in results] == ["c10-5t-mini"] * 2
    assert not results[0]["partial"] and results[0]["images_per_class"]["train"] == [8, 8]
    assert results[1]["config"]["epochs"] == 1
    Path("out/finetune/result.json").unlink()
    assert oarlock("run", "--resume", "--out", "out") == 0
    alone = run_arguments(small, "--method", "finetune")
    alone[alone.index("out")] = "alone"
    assert oarlock(*alone) == 0
    assert_same_run(Path("out/finetune"), Path("alone"))


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--protocol", "c11-5t"], "no protocol 'c11-5t'"),
        (["--protocol", "c10-5t", "sample"], "'sample': a protocol has its own data"),
        (["--protocol", "c10-5t", "--increment", "2,2"], "leave it out"),
        (["--protocol", "c10-5t", "--increment", "5"], "leave it out"),
        (["--protocol", "c10-5t", "--memory", "most"], "'most'"),
        (["--protocol", "c10-5t", "--data", "gone"], "has no folder cifar-10-batches-py"),
        (["--protocol", "t-5t-mini", "--data", "gone.tar"], "gone.tar"),
        (["--protocol", "c10-5t-mini", "--data", "{small}"], "--partial"),
        (["--protocol", "c100-10t-mini", "--data", "{small}", "--partial"], "not a class of CIFAR-100"),
        (["--protocol", "c10-5t-mini", "--data", "{small}", "--partial", "--memory", "5"], "memory of 5"),
        (["sample", "--memory", "half"], "'half'"),
        (["sample", "--partial"], "--partial goes with --protocol"),
        (["sample", "--data", "x.npz"], "--data goes with --protocol"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_writes_nothing(
    arguments: list[str], word: str, small: Path, oarlock: Command, capsys: pytest.CaptureFixture
) -> None:
    arguments = [argument.format(small=small) for argument in arguments]
    assert oarlock("run", *arguments, "--trunk", "vit_pico", "--out", "out") == 2
    printed = capsys.readouterr()
    assert printed.out == "" and printed.err.startswith("oarlock: ") and printed.err.count("\n") == 1
    assert word in printed.err
    assert not Path("out").exists()


def test_the_published_kind_of_checkpoint_works_from_a_local_file(tmp_path: Path, oarlock: Command) -> None:
    """DeiT-S/16 with a classifier of 611 classes under `model`, beside what DeiT's training script saves too."""
    torch.manual_seed(0)
    model = timm.create_model(DEIT, pretrained=False, num_classes=611)
    assert model.head.weight.shape == (611, 384)
    checkpoint = {"model": model.state_dict(), "epoch": 299, "args": argparse.Namespace(lr=0.001)}
    torch.save(checkpoint, tmp_path / "deit.pth")
    data = archive(tmp_path / "c.npz", train=2, test=1)
    arguments = ["--protocol", "c10-5t", "--partial", "--data", data, "--weights", tmp_path / "deit.pth"]
    assert oarlock("run", *arguments, "--method", "slda", "--threads", 1, "--out", "out") == 0
    result = json.loads(Path("out/result.json").read_text())
    assert (result["protocol"], result["trunk"], result["overlap"]) == ("c10-5t", DEIT, "unknown")
    assert result["entries"] > 21_600_000
    row = RunConfig(**run_settings("c10-5t", data=data, partial=True), weights=str(tmp_path / "deit.pth")).learner()
    state = row.trunk.tensors()
    assert all(torch.equal(state[name], value) for name, value in checkpoint["model"].items() if "head" not in name)
    rule = row.trunk.card.preprocessing
    assert (rule.size, rule.resize) == (224, 248) and rule.mean == pytest.approx((0.485, 0.456, 0.406))
