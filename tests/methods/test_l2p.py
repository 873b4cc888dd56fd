"""L2P: picks by brute force, the prompted pass by timm's own blocks, the loss by hand, and what is trained."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from timm.models.vision_transformer import VisionTransformer

from conftest import ARCHITECTURE, CARD, make_task
from oarlock import Learner, OarlockError
from oarlock.methods.l2p import L2p, TrainPrompts
from oarlock.nets.trunks.vit import Transformer
from oarlock.training import Step, TaskData, generator

OPTIONS = {"epochs": 2, "batch": 8, "pool": 6, "length": 2, "top": 3}
FIRST, SECOND = make_task(["a", "b"], 8), make_task(["c", "d", "e"], 6)


def pixels(images) -> torch.Tensor:
    return torch.from_numpy(images).permute(0, 3, 1, 2)


def new_learner(trunk, **options) -> Learner:
    return Learner("l2p", trunk=trunk, calibration=0.0, **(OPTIONS | options))


@pytest.fixture
def second_task(tiny_trunk) -> TrainPrompts:
    """The training of the second task, ready for its first batch."""
    method = new_learner(tiny_trunk).learn(*FIRST).method
    method.zero_grad()
    task = TaskData(1, pixels(SECOND[0]), torch.arange(3).repeat_interleave(6), 3, seed=0)
    method.begin(task)
    training = TrainPrompts(method, task)
    training.start()
    training.prepare()
    return training


def picked(method: L2p, query: torch.Tensor) -> list[tuple[float, int]]:
    """(cosine, number) of the best prompts, best first, one key at a time."""
    cosines = [F.cosine_similarity(query, key, dim=0).item() for key in method.keys]
    return sorted(((cosine, number) for number, cosine in enumerate(cosines)), reverse=True)[: method.config.top]


def test_the_prompts_with_the_highest_cosines_are_picked(second_task):
    method = second_task.method
    queries = torch.randn(40, 24, generator=generator("queries"))  # in all directions, so that picks differ
    cosines, chosen = method.match(queries)
    for query, values, numbers in zip(queries, cosines.tolist(), chosen.tolist(), strict=True):
        expected = picked(method, query)
        assert numbers == [number for _, number in expected]
        assert values == pytest.approx([cosine for cosine, _ in expected], abs=1e-6)
    assert len({tuple(sorted(numbers)) for numbers in chosen.tolist()}) > 5


POOLINGS = {
    "class token": {"global_pool": "token"},
    "norm then mean": {"global_pool": "avg", "fc_norm": False},
    "mean then norm": {"global_pool": "avg"},
}


@pytest.mark.parametrize("pooling", POOLINGS)
def test_the_pass_is_timms_own_over_prompts_and_tokens_side_by_side(pooling):
    torch.manual_seed(0)
    model = VisionTransformer(num_classes=0, **ARCHITECTURE, **POOLINGS[pooling]).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn(parameter.shape)
    learner = new_learner(Transformer(model, CARD)).learn(*FIRST)
    method, images = learner.method, pixels(SECOND[0])
    features = method.encode(images, [0])[:, 0]
    with torch.no_grad():
        x = (images.float() / 255 - 0.5) / 0.25
        queries = model.forward_head(model.forward_features(x), pre_logits=True)
        prompts = torch.stack(
            [torch.cat([method.prompts[number] for _, number in picked(method, query)]) for query in queries]
        )
        tokens = torch.cat([model.cls_token.expand(len(x), -1, -1), model.patch_embed(x)], 1) + model.pos_embed
        out = model.blocks(torch.cat([prompts, tokens], 1))
        norm_last = pooling == "mean then norm"
        expected = model.fc_norm(out[:, :6].mean(1)) if norm_last else model.norm(out)[:, :6].mean(1)
    torch.testing.assert_close(features, expected, rtol=1e-4, atol=1e-5)
    probabilities = (expected @ method.head.weight.T + method.head.bias).softmax(1).detach()
    np.testing.assert_allclose(learner.predict_proba(SECOND[0]), probabilities, atol=1e-5)


def test_the_loss_is_cross_entropy_with_other_tasks_masked_minus_half_the_cosines(second_task):
    method, rows = second_task.method, torch.tensor([0, 7, 8, 16])
    with torch.no_grad():
        logits = method.scores(method.encode(second_task.task.images[rows], [0]))
        logits[:, :2] = -torch.inf
        masked = F.cross_entropy(logits, torch.tensor([2, 3, 3, 4]))
        queries = method.trunk(second_task.task.images[rows])
        cosines = sum(cosine for query in queries for cosine, _ in picked(method, query)) / len(rows)
    loss = second_task.loss(Step((rows,), 0.0, generator("a step")))
    assert masked > 0.1 and abs(cosines) > 0.01
    torch.testing.assert_close(loss.value.detach(), masked - 0.5 * cosines)


def test_a_step_reaches_the_chosen_prompts_and_keys_and_the_tasks_own_outputs(second_task):
    method, rows = second_task.method, torch.tensor([3, 4])
    chosen = {number for row in rows for _, number in picked(method, second_task.queries[row])}
    assert 0 < len(chosen) < 6
    second_task.gradients(Step((rows,), 0.0, generator("a step")))
    for parameter, reached in ((method.keys, chosen), (method.prompts, chosen), (method.head.weight, {2, 3, 4})):
        touched = parameter.grad.flatten(1).abs().amax(1) > 0
        assert set(torch.nonzero(touched).flatten().tolist()) == reached


def test_gradients_are_clipped_to_length_one(second_task):
    step = Step((torch.arange(18),), 0.0, generator("a step"))
    with torch.no_grad():
        second_task.method.head.weight *= 1000  # so that gradients are long
    second_task.loss(step).value.backward()
    free = torch.cat([parameter.grad.flatten() for parameter in second_task.method.parameters()])
    second_task.method.zero_grad()
    second_task.gradients(step)
    clipped = torch.cat([parameter.grad.flatten() for parameter in second_task.method.parameters()])
    assert free.norm() > 10
    torch.testing.assert_close(clipped, free / free.norm(), rtol=1e-3, atol=1e-6)


def test_prompts_and_keys_start_uniform_and_are_all_that_is_trained_besides_the_head(tiny_trunk):
    before = {name: value.clone() for name, value in tiny_trunk.state_dict().items()}
    start = new_learner(tiny_trunk, epochs=0, pool=50, top=5).learn(*FIRST).method
    for tensor in (start.keys, start.prompts):
        assert tensor.min() >= 0 and tensor.max() < 0.01
        assert tensor.mean().item() == pytest.approx(0.005, rel=0.05)
        assert tensor.std().item() == pytest.approx(0.01 / np.sqrt(12), rel=0.05)
    learner = new_learner(tiny_trunk).learn(*FIRST)
    untrained = copy.deepcopy(new_learner(tiny_trunk, epochs=0).learn(*FIRST).method)
    assert {name for name, _ in learner.method.named_parameters()} == {"keys", "prompts", "head.weight", "head.bias"}
    for name, value in learner.method.named_parameters():
        assert not torch.equal(value, untrained.get_parameter(name))
    assert all(torch.equal(value, before[name]) for name, value in tiny_trunk.state_dict().items())


def test_keys_are_pulled_towards_the_queries_that_pick_them(tiny_trunk):
    pulled, left = (new_learner(tiny_trunk, pull=pull, epochs=6).learn(*FIRST).method for pull in (0.5, 0.0))
    queries = pulled.queries(pixels(FIRST[0]))
    assert pulled.match(queries)[0].mean() > left.match(queries)[0].mean() + 0.05


def test_an_answer_does_not_depend_on_the_images_asked_beside_it(tiny_trunk):
    learner = new_learner(tiny_trunk).learn(*FIRST).learn(*SECOND)
    images, _ = make_task(["a", "c", "e"], 4, seed=1)
    alone = np.concatenate([learner.predict_proba(image[None]) for image in images])
    np.testing.assert_allclose(learner.predict_proba(images), alone, atol=1e-5)


def test_more_prompts_than_the_pool_has_are_refused(tiny_trunk):
    with pytest.raises(OarlockError, match="pool of 6"):
        new_learner(tiny_trunk, top=7)
