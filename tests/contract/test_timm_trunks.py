"""Learning on a trunk of every family, with made-up weights: what is learned is kept, found again and resumed."""

from pathlib import Path

import numpy as np
import pytest
import torch

from conftest import make_task, make_tiny_convnet
from contract import test_contract as contract
from contract.conftest import NewLearner, small_options
from oarlock import Learner, load
from oarlock.data.images import Preprocessing
from oarlock.files import read_tensors
from oarlock.modelfile.export import export_onnx
from oarlock.modelfile.inspect import verify
from oarlock.nets.trunks import Card, Trunk, build_trunk, families, load_trunk
from oarlock.nets.trunks.vectors import Vectors
from oarlock.nets.trunks.vit import vision_transformer

pytestmark = [
    pytest.mark.usefixtures("random_weights"),
    pytest.mark.filterwarnings("ignore::UserWarning:timm|torch"),  # about how timm indexes
]

RULE = Preprocessing(16, 16, (0.5, 0.5, 0.5), (0.25, 0.25, 0.25))
TINY = {"img_size": 16, "patch_size": 8, "embed_dim": 24, "depth": 3, "num_heads": 2}
MADE = {
    "DINOv2": lambda: make_transformer(reg_tokens=4, no_embed_class=True, init_values=0.5),
    "SigLIP": lambda: make_transformer(global_pool="map", class_token=False),
    "EfficientNet-lite": make_tiny_convnet,
}
BY_NAME = {
    "test_vit": 32,
    "test_resnet": 64,
    "test_convnext": 64,
    "mobilenetv3_small_050": 64,
    "mobilenetv4_conv_small_035": 64,
    "test_efficientnet": 64,
    "regnetx_002": 64,
    "tiny_swin": 32,
    "test_nfnet": 64,
}
TASKS = [make_task([0, 1]), make_task([2, 3])]
TEST = contract.TEST


def make_transformer(**more: object) -> Trunk:
    card = Card("tiny", RULE, TINY | more, "random", ())
    torch.manual_seed(0)
    model = vision_transformer(**card.architecture)  # the card's own network has no values yet
    return build_trunk(card, {name: value * 3 for name, value in model.state_dict().items()})


def make_trunk(name: str) -> Trunk:
    return MADE[name]() if name in MADE else load_trunk(name, size=BY_NAME[name])


def test_every_family_is_here() -> None:
    assert {type(make_trunk(name)) for name in (*MADE, *BY_NAME)} == set(families.all().values()) - {Vectors}


@pytest.mark.parametrize(("name", "embedded"), [*((name, True) for name in (*MADE, *BY_NAME)), ("test_vit", False)])
def test_a_model_on_any_trunk_is_found_again_as_it_was(
    name: str, embedded: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large trunk is not in the file, but loaded by its name, at its size."""
    monkeypatch.setattr("oarlock.loading.EMBED_LIMIT", 2**25 if embedded else 0)
    trunk = make_trunk(name)
    learner = Learner("oar", trunk=trunk, memory=8, **small_options("oar"))
    for task in TASKS:
        learner.learn(*task)
    expected = learner.predict_proba(TEST)
    assert np.ptp(expected, axis=0).max() > 1e-3  # images are told apart
    learner.save(tmp_path / "model.oar")
    again = load(tmp_path / "model.oar")
    assert read_tensors(tmp_path / "model.oar", "model")[1]["trunk"]["embedded"] is embedded
    assert again.trunk.card == trunk.card and again.trunk.sha256 == trunk.sha256
    assert np.array_equal(again.predict_proba(TEST), expected)
    assert verify(tmp_path / "model.oar").holds
    assert np.allclose(again.accelerate().predict_proba(TEST), expected, atol=1e-4)


def test_a_trunk_with_one_adapter_on_its_features_is_passed_once_per_image(monkeypatch: pytest.MonkeyPatch) -> None:
    trunk = make_trunk("test_nfnet")
    seen: list[int] = []
    monkeypatch.setattr(trunk.model, "forward", _counting(trunk.model.forward, seen))
    Learner("hat", trunk=trunk, calibration=0, **small_options("hat", epochs=5)).learn(*TASKS[0])
    images = len(TASKS[0][0])
    assert images <= sum(seen) <= 2 * images  # in training, and for the promise


def _counting(forward: object, seen: list[int]) -> object:
    def counted(x: torch.Tensor) -> torch.Tensor:
        seen.append(len(x))
        return forward(x)

    return counted


@pytest.mark.parametrize("name", ["SigLIP", "test_resnet", "test_nfnet"])
class TestResumed:
    @pytest.fixture
    def tiny_trunk(self, name: str) -> Trunk:
        """In the place of the transformer that `new_learner` takes elsewhere."""
        return make_trunk(name)

    def test_stopped_anywhere_and_resumed_equals_never_stopped(self, new_learner: NewLearner) -> None:
        contract.test_stopped_anywhere_and_resumed_equals_never_stopped("hat", "sgd", new_learner)


def test_a_graph_of_a_network_in_stages_answers_as_the_model_does(tmp_path: Path) -> None:
    learner = Learner("oar", trunk=make_trunk("test_resnet"), memory=8, **small_options("oar"))
    written = export_onnx(learner.learn(*TASKS[0]).learn(*TASKS[1]), tmp_path / "model.onnx")
    assert written.difference < 1e-4 and written.images > 1
