"""The contract on a convolutional trunk: the same checks, for gated methods all of the promise."""

from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import make_task, make_tiny_convnet
from contract import test_contract as contract
from contract.conftest import NewLearner
from oarlock import Learner, OarlockError
from oarlock.methods import methods
from oarlock.nets.trunks import Trunk

METHODS = sorted(methods.all().keys() - {"l2p"})
PROTECTED = ["row", "hat"]
OPTIMISERS = [
    {"optimiser": "sgd", "momentum": 0.9, "lr": 0.05, "lamb": 0.1},  # at 0.75 no unit stays open, and no wing grows
    {"optimiser": "adamw", "lr": 0.01, "gate_lr": 0.01, "head_lr": 0.01},
]


@pytest.fixture(scope="module")
def tiny_trunk() -> Trunk:
    """In the place of the transformer that `new_learner` takes elsewhere."""
    return make_tiny_convnet()


@pytest.mark.parametrize("name", METHODS)
def test_what_was_learned_is_known_again(name: str, new_learner: NewLearner) -> None:
    """Twice the epochs of the transformer's check: A-GEM has no momentum."""
    learner = new_learner(name, epochs=12, wp_epochs=12).learn(*make_task([0, 1, 2]))
    assert learner.score(*make_task([0, 1, 2], 8, seed=1)) > 0.6


@pytest.mark.parametrize("name", METHODS)
def test_a_saved_learner_predicts_the_same_and_goes_on_the_same(
    name: str, new_learner: NewLearner, tmp_path: Path
) -> None:
    contract.test_a_saved_learner_predicts_the_same_and_goes_on_the_same(name, new_learner, tmp_path)


@pytest.mark.parametrize("name", PROTECTED)
@pytest.mark.parametrize("optimiser", OPTIMISERS, ids=["sgd with momentum", "adamw"])
def test_what_a_finished_task_answers_never_changes_again(
    name: str, optimiser: dict, new_learner: NewLearner, tmp_path: Path
) -> None:
    contract.test_what_a_finished_task_answers_never_changes_again(name, optimiser, new_learner, tmp_path)


@pytest.mark.parametrize("name", PROTECTED)
def test_units_that_finished_tasks_use_do_not_move_and_free_ones_do(name: str, new_learner: NewLearner) -> None:
    contract.test_units_that_finished_tasks_use_do_not_move_and_free_ones_do(name, new_learner)


@pytest.mark.parametrize("name", ["row", "finetune"])
def test_stopped_anywhere_and_resumed_equals_never_stopped(name: str, new_learner: NewLearner) -> None:
    contract.test_stopped_anywhere_and_resumed_equals_never_stopped(name, "sgd", new_learner)


@pytest.mark.parametrize("adapt_last", [None, 1])
@pytest.mark.parametrize("name", METHODS)
def test_learning_leaves_every_tensor_of_the_trunk_alone_statistics_included(
    name: str, adapt_last: int | None, tiny_trunk: Trunk, new_learner: NewLearner
) -> None:
    before = {key: value.clone() for key, value in tiny_trunk.tensors().items()}
    learner = new_learner(name, adapt_last=adapt_last)
    for task in contract.TASKS[:2]:
        learner.learn(*task)
    assert np.isfinite(learner.predict_proba(contract.TEST)).all()
    kinds = {key.rpartition(".")[2] for key in before}
    assert {"running_mean", "running_var", "num_batches_tracked"} <= kinds
    assert learner.trunk is tiny_trunk
    assert [key for key, value in tiny_trunk.tensors().items() if not torch.equal(value, before[key])] == []


def test_l2p_has_nowhere_to_put_its_prompts_and_says_so(tiny_trunk: Trunk) -> None:
    with pytest.raises(OarlockError, match="l2p needs a transformer") as caught:
        Learner("l2p", trunk=tiny_trunk)
    assert "'tiny lite'" in str(caught.value)
