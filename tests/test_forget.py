"""A class is taken out: nothing of it is left in the file, and what other tasks promised holds."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from conftest import make_images, make_task, make_tiny_convnet, make_tiny_trunk
from contract.conftest import assert_same, rebuilt, small_options, snapshot
from oarlock import Learner, OarlockError, load
from oarlock.methods import methods
from oarlock.modelfile.inspect import check_tasks

METHODS = sorted(methods.all())
FIXTURES = Path(__file__).parent / "fixtures"
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "closed": ("oar", {"few": 60, "looks": 2}),
    "open": ("oar", {}),
    "tuned": ("oar", {"few": 60, "looks": 2, "tune_classes": 2, "tune_steps": 2}),
    "alone": ("oar", {"beta": 0.0}),
    "row": ("row", {}),
    "row-wp": ("row-wp", {}),
    "more": ("more", {}),
    "hat": ("hat", {}),
    "slda": ("slda", {}),
}
TEST = np.concatenate([make_images(sum(map(ord, name)), 4, seed=1) for name in ("ant", "bee", "cow", "dog", "elk")])

every_kind = pytest.mark.parametrize("kind", KINDS)


def make(kind: str, size: int | None = None, **wanted: Any) -> Learner:
    """Three tasks; the second is a class alone."""
    name, options = KINDS[kind]
    trunk = make_tiny_trunk() if size is None else make_tiny_convnet()
    learner = Learner(name, trunk=trunk, size=size, memory=12, **small_options(name, **options, **wanted))
    for labels in (["ant", "bee"], ["cow"], ["dog", "elk"]):
        learner.learn(*make_task(labels, size=size or 16))
    return learner


def rows_of(learner: Learner, label: str) -> Iterator[tuple[str, Tensor]]:
    """All that a learner keeps of a class, as it stands in a file: photos, features, means, rows of heads."""
    method, modules = learner.method, dict(learner.method.named_modules())
    for column in learner.columns.of[label]:
        task = int(method.tasks_of(torch.tensor(column)))
        place = column - method.class_slice(task).start
        for store in (method.memory, learner.calibration):
            own = store.labels == column
            yield from (("features", row.flatten()) for row in store.encoded[own] if row.numel())
            yield from (("pixels", image.flatten()) for image in store.images[own])
            if hasattr(store, "files"):
                files = [torch.frombuffer(bytearray(file), dtype=torch.uint8) for file in store._each()]
                yield from (("a JPEG", file) for file, mine in zip(files, own.tolist(), strict=True) if mine)
        for name, module in modules.items():
            if isinstance(module, nn.Linear) and name.endswith(f"heads.{task}"):
                yield f"a row of {name}", module.weight[place].detach()
            if hasattr(module, "means") and name.startswith("gaussians"):
                pooled = name == "gaussians"
                if (pooled or name.endswith(f".{task}")) and len(module.means):
                    yield f"a mean of {name}", module.means[column if pooled else place]
            if name == "trunk_gaussians" and len(module.means):
                yield "a mean under the trunk", module.means[column]
        promise = learner.history_[task].promise
        if promise is not None:
            shown = torch.from_numpy(make_task([label], size=learner.trunk.size)[0]).permute(0, 3, 1, 2)
            mine = torch.stack([(shown == image).flatten(1).all(1).any() for image in promise.images])
            yield from (("a probe", image.flatten()) for image in promise.images[mine])
            yield from (("an answer", row.flatten()) for row in promise.answers["features"][mine])


def found(learner: Learner, file: Path, kept: list[tuple[str, Tensor]]) -> set[str]:
    """What of it is in the learner's file."""
    learner.save(file)
    content = file.read_bytes()
    telling = [(what, row) for what, row in kept if len(row.unique()) > 2]  # the head of a single class may be zeros
    return {what for what, row in telling if row.contiguous().numpy().tobytes() in content}


@every_kind
@pytest.mark.parametrize("label", ["bee", "cow"])
def test_nothing_of_it_is_in_the_file(kind: str, label: str, tmp_path: Path) -> None:
    learner = make(kind)
    kept = [(what, row.clone()) for what, row in rows_of(learner, label)]
    names = {what for what, row in kept if len(row.unique()) > 2}
    assert {"features", "pixels"} <= names and len(names) >= (3 if kind == "slda" else 5)
    assert found(learner, tmp_path / "before.oar", kept) == names  # the search finds what is there
    assert label.encode() in (tmp_path / "before.oar").read_bytes()
    learner.forget(label)
    assert found(learner, tmp_path / "after.oar", kept) == set()
    assert label.encode() not in (tmp_path / "after.oar").read_bytes()


def test_no_jpeg_of_it_is_in_the_file_either(tmp_path: Path) -> None:
    learner = make("closed", size=64)
    kept = [(what, row.clone()) for what, row in rows_of(learner, "bee") if what in ("a JPEG", "a probe", "features")]
    assert found(learner, tmp_path / "before.oar", kept) == {"a JPEG", "a probe", "features"}
    learner.forget("bee")
    assert found(learner, tmp_path / "after.oar", kept) == set()
    others = [row for row in rows_of(learner, "ant") if row[0] in ("a JPEG", "features")]
    assert found(learner, tmp_path / "after.oar", others) == {"a JPEG", "features"}


@every_kind
@pytest.mark.parametrize("label", ["bee", "cow", "dog"])
def test_what_others_promised_holds_bit_for_bit(kind: str, label: str) -> None:
    learner = make(kind)
    before = {name: task.promise for task in learner.history_ for name in task.classes}
    learner.forget(label)
    assert label not in learner.classes_
    for index, task in enumerate(learner.history_):
        old = before[task.classes[0]]
        if task.promise is None or old is None:
            assert kind == "slda" and task.promise is old is None
            continue
        check = task.promise.check(learner.method, index)
        assert check.same_machine and check.changed == []
        if [label, *task.classes] in (["bee", "ant"], ["dog", "elk"]):  # which promises anew, about other images
            assert not torch.equal(task.promise.images, old.images)
        else:
            assert torch.equal(task.promise.images, old.images) and task.promise.constants == old.constants
            assert all(torch.equal(value, task.promise.answers[name]) for name, value in old.answers.items())


@every_kind
@pytest.mark.parametrize("label", ["bee", "cow"])
def test_it_answers_goes_on_and_survives_its_file(kind: str, label: str, tmp_path: Path) -> None:
    learner = make(kind).forget(label)
    left = [name for name in ("ant", "bee", "cow", "dog", "elk") if name != label]
    assert learner.classes_.tolist() == left
    assert set(learner.predict(TEST).tolist()) <= set(left)
    assert learner.predict_proba(TEST).shape == (len(TEST), 4)
    assert len(learner.predict(TEST, accept=0.9)) == len(TEST)
    learner.save(tmp_path / "m.oar")
    again = load(tmp_path / "m.oar")
    assert_same(snapshot(again), snapshot(learner))
    assert np.array_equal(again.predict_proba(TEST), learner.predict_proba(TEST))
    assert_same(
        snapshot(again.learn(*make_task([label, "fox"]))), snapshot(learner.learn(*make_task([label, "fox"])))
    )
    assert learner.tasks_[-1] == [label, "fox"]  # it may be learned again
    assert all(task.check.holds for task in check_tasks(learner))
    if learner.method.protector is not None:
        fast = rebuilt(snapshot(learner)).accelerate().predict_proba(TEST)
        np.testing.assert_allclose(fast, learner.predict_proba(TEST), atol=1e-4)


@every_kind
def test_the_other_answers_hardly_change(kind: str) -> None:
    """Heads are tuned again, a row is gone: what is left are the shares of the others among themselves."""
    learner, others = make(kind), np.concatenate([TEST[:4], TEST[8:]])
    before = learner.predict_proba(others)[:, [0, 2, 3, 4]]
    after = learner.forget("bee").predict_proba(others)
    np.testing.assert_allclose(after, before / before.sum(1, keepdims=True), atol=0.25)


def test_slda_forgets_as_if_only_the_mean_had_gone() -> None:
    learner = make("slda")
    before = learner.predict_proba(TEST)[:, [0, 2, 3, 4]]
    after = learner.forget("bee").predict_proba(TEST)
    np.testing.assert_allclose(after, before / before.sum(1, keepdims=True), rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", METHODS)
def test_who_cannot_forget_says_so_and_changes_nothing(name: str) -> None:
    learner = Learner(name, trunk=make_tiny_trunk(), memory=12, **small_options(name)).learn(
        *make_task(["ant", "bee"])
    )
    before = snapshot(learner)
    if name in {method for method, _ in KINDS.values()} | {"row-wp-md"}:
        assert learner.forget("ant").predict(TEST).tolist() == ["bee"] * len(TEST)
        return
    with pytest.raises(OarlockError, match=f"^{name} cannot forget a class: .* share"):
        learner.forget("ant")
    assert_same(snapshot(learner), before)


def test_heads_are_tuned_again_on_what_is_left() -> None:
    learner, memory = make("row"), []
    heads = [head.weight.clone() for head in learner.method.ood_heads]
    learner.forget("cow")
    method = learner.method
    assert len(method.ood_heads) == 2 and not torch.equal(method.ood_heads[0].weight, heads[0])
    memory = method.memory.labels.unique().tolist()
    assert memory == [0, 1, 2, 3] and method.memory.encoded.shape[1] == 2


def test_adapters_that_only_its_task_used_are_drawn_anew() -> None:
    """What a later task relies on stays where it is."""
    learner = make("row", grow_below=1.0, wing=4)  # every task gets a wing
    method = learner.method
    layers = [[part.fc1.weight.clone() for part in layer.bottlenecks] for layer in method.protector.layers]
    assert [len(layer) for layer in layers] == [3] * len(layers)
    used_by_others = [
        torch.stack([method.protector.gates[task].hidden[0][0] > 0 for task in (0, 2)]).any(0),
        method.protector.gates[2].hidden[0][1] > 0,
    ]
    learner.forget("cow")
    for index, used in enumerate(used_by_others):
        now = learner.method.protector.layers[0].bottlenecks[index]
        assert torch.equal(now.fc1.weight[used], layers[0][index][used])
        assert not torch.isin(now.fc1.weight[~used], layers[0][index]).any()
        assert torch.equal(now.hidden_used, used)
    newest = make("row", grow_below=1.0, wing=4).forget("elk").forget("dog")
    assert [len(layer.bottlenecks) for layer in newest.method.protector.layers] == [2] * len(layers)
    assert_same(snapshot(rebuilt(snapshot(newest))), snapshot(newest))


def test_a_class_that_was_learned_in_parts_goes_with_all_of_them(tmp_path: Path) -> None:
    learner = make("row").rename("bee", "wasp").learn(*make_task(["wasp"], seed=3), more=True).merge("wasp", "cow")
    kept = [(what, row.clone()) for what, row in rows_of(learner, "wasp")]
    learner.rename("ant", "emmet").forget("wasp")
    assert learner.tasks_ == [["emmet"], ["dog", "elk"]]
    assert found(learner, tmp_path / "m.oar", kept) == set()
    content = (tmp_path / "m.oar").read_bytes()
    assert not any(name in content for name in (b"wasp", b"bee", b"cow"))  # nor a name that it had
    assert [note.edit for note in learner.edits_] == ["rename", "forget"]
    assert all(task.check.holds for task in check_tasks(learner))


def test_without_an_image_left_nothing_is_promised() -> None:
    learner = Learner("hat", trunk=make_tiny_trunk(), calibration=0.0, **small_options("hat"))
    learner.learn(*make_task(["ant", "bee"])).learn(*make_task(["cow"])).forget("bee")
    assert [task.promise is None for task in learner.history_] == [True, False]
    assert check_tasks(learner)[0].check.holds


def test_the_only_class_is_not_forgotten() -> None:
    learner = Learner("slda", trunk=make_tiny_trunk()).learn(*make_task(["ant"]))
    with pytest.raises(OarlockError, match="'ant' is all that the model knows: remove its file"):
        learner.forget("ant")
    with pytest.raises(OarlockError, match="has no class 'bee'"):
        learner.forget("bee")


@pytest.mark.parametrize(
    "file", sorted(FIXTURES.glob("format-*/*.oar")), ids=lambda file: f"{file.parent.name}-{file.stem}"
)
def test_a_model_of_an_earlier_format_can_forget_too(file: Path, tmp_path: Path) -> None:
    learner = load(file)
    if learner.method.name in ("derpp", "tpl"):
        with pytest.raises(OarlockError, match="cannot forget"):
            learner.forget("cow")
        return
    learner.forget("cow").forget("ant").save(tmp_path / "m.oar")
    assert load(tmp_path / "m.oar").tasks_ == [["bee"], ["dog", "elk"]]
    assert all(not task.check.changed or not task.check.same_machine for task in check_tasks(learner))
