"""ROW's steps, its prediction, its ablations, and what it does not compute twice."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from scipy.spatial.distance import cdist
from scipy.special import log_softmax
from scipy.special import softmax as softmax_of
from torch import Tensor
from torch.optim import Optimizer

from conftest import make_images, make_task
from contract.conftest import small_options
from oarlock import Learner
from oarlock.data.images import prepare
from oarlock.detectors.gaussians import MIN_DISTANCE, ClassGaussians
from oarlock.detectors.pooled import PooledGaussians
from oarlock.methods._ood_heads import TuneOodHeads
from oarlock.methods.row import Row, TrainWpHead
from oarlock.nets.adapters import AdaptedTrunk
from oarlock.nets.protectors.hat import Gates, Hat
from oarlock.nets.trunks import Trunk
from oarlock.training import NoCallback, Phase, Position, Step, TaskData

PAPER = {"tau": 2.0}  # the paper's formula, with a temperature
TASKS = [make_task([0, 1]), make_task([2, 3, 4]), make_task([5])]

NewRow = Callable[..., Learner]


@pytest.fixture
def new_row(tiny_trunk: Trunk) -> NewRow:
    def make(
        name: str = "row", memory: int = 12, tasks: int = 0, calibration: float = 0.1, **options: object
    ) -> Learner:
        settings = small_options(name, **(PAPER | options))
        learner = Learner(name, trunk=tiny_trunk, memory=memory, calibration=calibration, **settings)
        for task in TASKS[:tasks]:
            learner.learn(*task)
        return learner

    return make


def row_of(learner: Learner) -> Row:
    assert isinstance(learner.method, Row)
    return learner.method


@torch.no_grad()
def set_logits(head: torch.nn.Linear, logits: list[float]) -> None:
    """Make a head answer the same for every input."""
    head.weight.zero_()
    head.bias.copy_(torch.tensor(logits))


def softmax(values: list[float], tau: float) -> list[float]:
    powers = [math.exp(value / tau) for value in values]
    return [power / sum(powers) for power in powers]


# Prediction


@pytest.fixture
def by_hand(new_row: NewRow) -> tuple[Row, Tensor]:
    """Tasks of two and three classes with heads that answer constants and means on the axes; one input per task."""
    row = row_of(new_row(tasks=2))
    set_logits(row.wp_heads[0], [1.0, 3.0])
    set_logits(row.wp_heads[1], [0.0, 2.0, -1.0])
    set_logits(row.ood_heads[0], [2.0, 1.0, 4.0])
    set_logits(row.ood_heads[1], [0.0, 3.0, 1.0, -2.0])
    set_logits(row.step1_heads[0], [5.0, -1.0, 9.0])
    set_logits(row.step1_heads[1], [1.0, 6.0, 2.0, 7.0])
    for gaussians, scale in zip(row.gaussians, (1.0, 0.5), strict=True):
        gaussians.means.zero_()
        for number in range(len(gaussians.means)):
            gaussians.means[number, number] = 1.0
        gaussians.whitening = scale * torch.eye(row.trunk.dim)
    encoded = torch.zeros(1, 2, row.trunk.dim)
    encoded[0, 0, 0] = 4.0  # 3 from the first class of task 0, √17 from the second
    encoded[0, 1, 2] = 1.0  # on the mean of the third class of task 1 …
    encoded[0, 1, 3] = 3.0  # … but for this; half of 3 after whitening
    return row, encoded


def test_the_probability_is_wp_times_coefficient_times_best_class_output(by_hand: tuple[Row, Tensor]) -> None:
    row, encoded = by_hand
    tp = [max(softmax([2, 1, 4], 2)[:2]) / 3, max(softmax([0, 3, 1, -2], 2)[:3]) / 1.5]
    wp = [softmax([1, 3], 2), softmax([0, 2, -1], 2)]
    joint = [p * tp[0] for p in wp[0]] + [p * tp[1] for p in wp[1]]
    expected = torch.tensor([[p / sum(joint) for p in joint]])
    with torch.no_grad():
        assert torch.allclose(row.scores(encoded).softmax(1), expected, rtol=1e-5)
        assert torch.allclose(row.within_task(encoded, 1).exp(), torch.tensor([wp[1]]), rtol=1e-5)
        assert torch.allclose(row.task_scores(encoded).softmax(1), torch.tensor([tp]) / sum(tp), rtol=1e-5)
        assert torch.allclose(row.in_distribution(encoded).exp(), torch.tensor([max(tp)]), rtol=1e-5)


def test_without_wp_is_the_step_1_softmax_times_the_coefficient(by_hand: tuple[Row, Tensor]) -> None:
    row, encoded = by_hand
    joint = [p / 3 for p in softmax([5, -1, 9], 2)[:2]] + [p / 1.5 for p in softmax([1, 6, 2, 7], 2)[:3]]
    with torch.no_grad():
        answer = row.variants["row-wp"](row, encoded)
    assert torch.allclose(answer.softmax(1), torch.tensor([joint]) / sum(joint), rtol=1e-5)


def test_without_wp_and_md_is_the_best_step_1_logit_that_belongs_to_a_class(by_hand: tuple[Row, Tensor]) -> None:
    row, encoded = by_hand
    with torch.no_grad():
        answer = row.variants["row-wp-md"](row, encoded)
    assert answer.argmax(1).item() == 3  # 6.0, although 9.0 and 7.0 say "not mine"
    assert answer.tolist() == [[5.0, -1.0, 1.0, 6.0, 2.0]]


def test_an_input_on_a_class_mean_has_a_finite_coefficient(by_hand: tuple[Row, Tensor]) -> None:
    row, encoded = by_hand
    encoded[0, 0] = row.gaussians[0].means[1]
    with torch.no_grad():
        assert row.log_coefficients(encoded)[0, 0].item() == pytest.approx(-math.log(MIN_DISTANCE))
        assert torch.isfinite(row.scores(encoded)).all()


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("row", {"tau": 1.0, "gamma": 1.0}),
        ("row", {"tau": 5.0, "gamma": 0.0}),
        ("oar", {"tau": 5.0, "gamma": 1.0, "beta": 0.0}),
        ("oar", {"tau": 1.0, "gamma": 2.5, "beta": 0.0}),
        ("oar", {"tau": 5.0, "gamma": 8.0, "beta": 0.8}),
    ],
)
def test_answers_are_the_formula_on_a_trained_model(method: str, options: dict[str, float], new_row: NewRow) -> None:
    learner = new_row(method, tasks=3, **options)
    tau, gamma, beta = (options.get(name, 0.0) for name in ("tau", "gamma", "beta"))
    row, images = row_of(learner), np.concatenate([make_images(label, 3, seed=1) for label in range(7)])
    pixels = prepare(images, learner.trunk.card.preprocessing)
    encoded, bare = row.encode(pixels, range(3)).double().numpy(), row.trunk.below_and_bare(pixels, 0)[1].flatten(1)

    def head(linear: torch.nn.Linear, features: np.ndarray) -> np.ndarray:
        z = features @ linear.weight.detach().double().numpy().T + linear.bias.detach().double().numpy()
        return log_softmax(z / tau, axis=1)

    def distances(gaussians: ClassGaussians | PooledGaussians, features: np.ndarray) -> np.ndarray:
        whitened, means = gaussians.whiten(torch.eye(features.shape[1])).double().numpy(), gaussians.means.double()
        return cdist(features, means.numpy(), "mahalanobis", VI=whitened @ whitened.T)

    ours, paper, without_wp = [], [], []
    for k in range(3):
        features = encoded[:, k]
        c = -np.log(distances(row.gaussians[k], features).min(1, keepdims=True))
        wp, best = head(row.wp_heads[k], features), head(row.ood_heads[k], features)[:, :-1].max(1, keepdims=True)
        b = np.zeros_like(c)
        if beta:
            squared = distances(row.trunk_gaussians, bare.double().numpy())[:, row.class_slice(k)] ** 2
            b = -beta / 2 * squared.min(1, keepdims=True)
        ours.append(wp + gamma * c + best + b)
        paper.append(wp + c + best)
        without_wp.append(head(row.step1_heads[k], features)[:, :-1] + gamma * c)
    seen = row.encode(pixels, row.feature_sets(3))
    with torch.no_grad():
        read, by_hand = [row.scores(seen)], [ours]
        if method == "oar":
            read, by_hand = [*read, row.variants["row"](row, seen)], [*by_hand, paper]
        else:
            read, by_hand = [*read, row.variants["row-wp"](row, seen)], [*by_hand, without_wp]
    for answer, expected in zip(read, by_hand, strict=True):
        assert np.allclose(answer.numpy(), np.concatenate(expected, 1), rtol=1e-3, atol=1e-3)
    probability = learner.predict_proba(images)
    assert np.allclose(probability, softmax_of(np.concatenate(ours, 1), axis=1), rtol=2e-2, atol=1e-6)
    assert np.allclose(probability.sum(1), 1)


def test_the_gaussians_are_the_class_means_and_the_shrunk_mean_of_class_covariances(new_row: NewRow) -> None:
    learner = new_row(calibration=0.0, shrinkage=0.2)
    images, labels = make_task([0, 1], 7)
    images, labels = images[:11], labels[:11]  # classes of 7 and 4 images
    learner.learn(images, labels)
    row = row_of(learner)
    features = row.encode(prepare(images, learner.trunk.card.preprocessing), [0])[:, 0].double().numpy()
    groups = [features[:7], features[7:]]
    covariance = 0.8 * sum(np.cov(group.T, ddof=0) for group in groups) / 2 + 0.2 * np.eye(features.shape[1])
    whitened = row.gaussians[0].whiten(torch.eye(len(covariance))).double().numpy()
    assert np.allclose(row.gaussians[0].means.numpy(), [group.mean(0) for group in groups], atol=1e-4)
    assert np.allclose(whitened @ whitened.T, np.linalg.inv(covariance), rtol=1e-3, atol=1e-3)


# The steps


def test_later_tasks_retune_ood_heads_and_leave_wp_heads_and_step_1_heads_alone(new_row: NewRow) -> None:
    learner = new_row(tasks=1)
    row = row_of(learner)
    ood, wp, step1 = (heads[0].weight.detach().clone() for heads in (row.ood_heads, row.wp_heads, row.step1_heads))
    learner.learn(*TASKS[1])
    row = row_of(learner)
    assert not torch.equal(row.ood_heads[0].weight, ood)
    assert torch.equal(row.wp_heads[0].weight, wp)
    assert torch.equal(row.step1_heads[0].weight, step1)
    assert not torch.equal(row.ood_heads[1].weight, row.step1_heads[1].weight)


def test_with_one_task_the_ood_head_stays_as_step_1_left_it(new_row: NewRow) -> None:
    row = row_of(new_row(tasks=1))
    assert torch.equal(row.ood_heads[0].weight, row.step1_heads[0].weight)
    assert torch.equal(row.ood_heads[0].bias, row.step1_heads[0].bias)


def test_an_ood_head_has_one_output_more_than_its_task_has_classes(new_row: NewRow) -> None:
    row = row_of(new_row(tasks=3))
    assert [head.out_features for head in row.ood_heads] == [3, 4, 2]
    assert [head.out_features for head in row.wp_heads] == [2, 3, 1]


def cross_entropy(features: Tensor, head: torch.nn.Linear, labels: list[int]) -> Tensor:
    """Mean over images of log Σ exp z − z of the right class, written out."""
    z = features @ head.weight.T + head.bias
    return torch.stack([z[i].exp().sum().log() - z[i, label] for i, label in enumerate(labels)]).mean()


def opened_of_free(hat: Hat, s: float) -> Tensor:
    """HAT's regulariser of the newest task: of the units that no finished task uses, the share that it opens."""
    opened, free = torch.zeros(()), 0
    for layer, hidden, output in zip(hat.layers, hat.gates[-1].hidden, hat.gates[-1].output, strict=True):
        used = [*(part.hidden_used for part in layer.bottlenecks), layer.bottlenecks[0].output_used]
        for e, taken in zip([*hidden, output], used, strict=True):
            opened = opened + ((s * e).sigmoid() * ~taken).sum()
            free += int((~taken).sum())
    return opened / free


def test_the_losses_of_all_three_steps_are_what_they_are_by_hand(new_row: NewRow) -> None:
    row = row_of(new_row(tasks=1, calibration=0.0, lamb=0.5, s_max=20.0))
    images, labels = make_task([2, 3, 4])
    task = TaskData(1, torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor(labels) - 2, 3, seed=0)
    row.begin(task)
    step1, step2, step3 = row.phases(task)
    memory, random = row.memory.images, torch.Generator()

    step1.start()
    step1.prepare()
    s = 1 / 20 + (20 - 1 / 20) * 0.3
    seen = torch.cat([task.images[[0, 11, 29]], memory[[1, 7]]])
    features = row.protector(row.protector.below(seen), 1, 0.3)
    by_hand = cross_entropy(features, row.ood_heads[1], [0, 1, 2, 3, 3])  # the memory's images are "not mine"
    by_hand = by_hand + 0.5 * opened_of_free(row.protector, s)
    loss = step1.loss(Step((torch.tensor([0, 11, 29]), torch.tensor([1, 7])), 0.3, random))
    assert loss.value.item() == pytest.approx(by_hand.item(), rel=1e-5)
    step1.finish()

    step2.start()
    step2.prepare()
    features = row.encode(task.images[[3, 12, 25]], [1])[:, 0]
    loss = step2.loss(Step((torch.tensor([3, 12, 25]),), 0.0, random))
    by_hand = cross_entropy(features, row.wp_heads[1], [0, 1, 2])
    assert loss.value.item() == pytest.approx(by_hand.item(), rel=1e-5)
    step2.finish()

    step3.start()
    step3.prepare()
    classes = row.memory.labels.tolist()
    first, second = ([i for i, c in enumerate(classes) if (c >= 2) == task_] for task_ in (False, True))
    by_hand = torch.zeros(())
    for j, (own, foreign, start) in enumerate([(first, second, 0), (second, first, 2)]):
        rows = [own[0], own[-1], foreign[1]]
        features = row.encode(row.memory.images[rows], [j])[:, 0]
        by_hand = by_hand + cross_entropy(
            features, row.ood_heads[j], [classes[rows[0]] - start, classes[rows[1]] - start, row.classes_per_task[j]]
        )
    ends = [torch.tensor([0, len(own) - 1]) for own in (first, second)]
    loss = step3.loss(Step((ends[0], torch.tensor([1]), ends[1], torch.tensor([1])), 0.0, random))
    assert loss.value.item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_without_a_memory_the_loss_of_step_1_is_the_mean_over_the_tasks_images(new_row: NewRow) -> None:
    row = row_of(new_row(lamb=0.0, s_max=20.0))
    images, labels = TASKS[0]
    task = TaskData(0, torch.from_numpy(images).permute(0, 3, 1, 2), torch.tensor(labels), 2, seed=0)
    row.begin(task)
    step1 = row.phases(task)[0]
    step1.prepare()
    rows = torch.tensor([0, 4, 11, 19])
    features = row.protector(row.protector.below(task.images[rows]), 0, 0.3)
    by_hand = cross_entropy(features, row.ood_heads[0], [0, 0, 1, 1])  # and not half of it
    loss = step1.loss(Step((rows,), 0.3, torch.Generator()))
    assert loss.value.item() == pytest.approx(by_hand.item(), rel=1e-5)


@pytest.mark.parametrize(("batch", "batches"), [(8, 3), (64, 1)])
def test_gates_are_hardest_at_the_last_batch_of_every_epoch(
    batch: int, batches: int, new_row: NewRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []

    def values(self: Gates, s: float, s_max: float, *, original: Callable = Gates.values) -> Any:
        if not self.finished:
            used.append(s)
        return original(self, s, s_max)

    monkeypatch.setattr(Gates, "values", values)
    new_row(tasks=1, calibration=0.0, batch=batch, epochs=2, s_max=20.0)
    epoch = [1 / 20, 1 / 40 + 10, 20] if batches == 3 else [20]
    in_features_and_in_penalty = [s for s in epoch for _ in range(2)]
    assert used == pytest.approx(in_features_and_in_penalty * 2)


def test_wp_heads_are_trained_at_the_rate_of_heads(new_row: NewRow) -> None:
    learner = new_row(lr=0.02, head_lr=0.007)
    prepared = learner.prepare_task(*TASKS[0])
    learner.method.begin(prepared.task)
    _, step2, step3 = row_of(learner).phases(prepared.task)
    assert [group["lr"] for step in (step2, step3) for group in step.optimiser().param_groups] == [0.007, 0.007]


def test_step_2_starts_from_the_class_rows_of_the_ood_head(new_row: NewRow, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = []

    def prepare_(self: TrainWpHead, *, original: Callable = TrainWpHead.prepare) -> None:
        ood_head = self.row.ood_heads[self.task.index]
        checked.append(torch.equal(self.head.weight, ood_head.weight[:-1]))
        checked.append(torch.equal(self.head.bias, ood_head.bias[:-1]))
        original(self)

    monkeypatch.setattr(TrainWpHead, "prepare", prepare_)
    row = row_of(new_row(tasks=2))
    assert checked == [True] * 4
    assert not torch.equal(row.wp_heads[1].weight, row.step1_heads[1].weight[:-1])  # and is trained from there


def test_step_3_batches_are_half_own_and_half_foreign_and_use_all_images_equally(
    new_row: NewRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[TuneOodHeads, Step]] = []

    def loss(self: TuneOodHeads, step: Step, *, original: Callable = TuneOodHeads.loss) -> object:
        steps.append((self, step))
        return original(self, step)

    monkeypatch.setattr(TuneOodHeads, "loss", loss)
    learner = new_row(memory=24, tasks=2, head_batch=8, ood_epochs=1)
    memory = row_of(learner).memory
    assert len(steps) == 3  # 24 remembered images in batches of 8
    data = steps[0][0].data
    own_labels = [(memory.labels < 2), (memory.labels >= 2)]
    for j, mine in enumerate(own_labels):
        features = memory.encoded[:, j]
        assert torch.equal(data[j].own, features[mine])
        assert torch.equal(data[j].foreign, features[~mine])
        assert torch.equal(data[j].labels, memory.labels[mine] - 2 * j)
        for column, images in ((2 * j, data[j].own), (2 * j + 1, data[j].foreign)):
            assert [len(step.batch[column]) for _, step in steps] == [8, 8, 8]
            used = Counter(torch.cat([step.batch[column] for _, step in steps]).tolist())
            counts = [used[number] for number in range(len(images))]
            assert max(counts) - min(counts) <= 1


def test_memory_is_balanced_and_within_budget(new_row: NewRow) -> None:
    for tasks, expected in ((1, {0: 6, 1: 6}), (2, dict.fromkeys(range(5), 2)), (3, dict.fromkeys(range(6), 2))):
        memory = row_of(new_row(memory=13, tasks=tasks)).memory
        assert Counter(memory.labels.tolist()) == expected
        assert memory.encoded.shape[1] == tasks


def test_remembered_features_are_what_encoding_the_images_now_gives(new_row: NewRow) -> None:
    row = row_of(new_row(tasks=3))
    assert torch.allclose(row.memory.encoded, row.encode(row.memory.images, range(3)), atol=1e-4)


# Nothing is computed twice


class Counted(NoCallback):
    """Rows that pass the adapters (by task) and what lies below them, phase by phase."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.phases: list[dict[str, Counter]] = []
        self.now = {"below": Counter(), "task": Counter()}

        def below(adapters: Hat, images: Tensor, *, original: Callable = AdaptedTrunk.below) -> Tensor:
            self.now["below"]["rows"] += len(images)
            return original(adapters, images)

        def forward(
            adapters: Hat, activations: Tensor, task: int, *rest: float, original: Callable = Hat.forward
        ) -> Tensor:
            self.now["task"][task] += len(activations)
            return original(adapters, activations, task, *rest)

        monkeypatch.setattr(AdaptedTrunk, "below", below)
        monkeypatch.setattr(Hat, "forward", forward)

    def on_phase(self, task: int, phase: Phase) -> None:
        self.now = {"below": Counter(), "task": Counter()}
        self.phases.append(self.now)

    def on_checkpoint(self, position: Position, optimiser: Optimizer | None) -> None:
        if optimiser is None:
            self.now = {"below": Counter(), "task": Counter()}


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counted]:
    yield Counted(monkeypatch)


@pytest.mark.parametrize("epochs", [1, 5])
def test_head_phases_pass_each_image_once_per_task_and_not_once_per_epoch(
    epochs: int, new_row: NewRow, counted: Counted
) -> None:
    learner = new_row(memory=24, tasks=2, calibration=0.0, wp_epochs=epochs, ood_epochs=epochs)
    learner.learn(*TASKS[2], callback=counted)
    _, step2, step3 = counted.phases
    assert step2["task"] == {2: 10}  # the task's ten images under its own features
    # Four images of each class are remembered: those of old classes are new to task 2, those of the new class to
    # tasks 0 and 1; nothing else is computed.
    assert step3["task"] == {0: 4, 1: 4, 2: 20}
    assert not step2["below"] and not step3["below"]  # step 1 had their activations


def test_bare_features_are_taken_from_the_pass_that_makes_activations(
    new_row: NewRow, monkeypatch: pytest.MonkeyPatch
) -> None:
    learner = new_row("oar", memory=24, tasks=2, calibration=0.0, adapt_last=1, beta=0.5)
    rows, original = [], AdaptedTrunk.below_and_bare

    def counting(adapters: Hat, images: Tensor) -> tuple[Tensor, Tensor]:
        rows.append(len(images))
        return original(adapters, images)

    monkeypatch.setattr(AdaptedTrunk, "below_and_bare", counting)
    learner.learn(*TASKS[2])
    assert rows == [10]


@pytest.mark.parametrize("adapt_last", [1, 3])
def test_features_from_kept_activations_are_what_encoding_gives(adapt_last: int, new_row: NewRow) -> None:
    row = row_of(new_row("oar", tasks=2, adapt_last=adapt_last, beta=0.5))
    images = prepare(TASKS[0][0], row.trunk.card.preprocessing)
    some, activations = torch.tensor([4, 0, 7]), row.activations(images)
    assert row.activations(images) is activations
    for sets in (row.feature_sets(2), row.feature_sets(0), [1]):
        assert torch.equal(row.encode_cached(activations, sets), row.encode(images, sets))
        assert torch.allclose(row.encode_cached(activations, sets, some), row.encode(images[some], sets), atol=1e-5)


def test_remembered_features_are_not_recomputed_from_task_to_task(new_row: NewRow, counted: Counted) -> None:
    learner = new_row(memory=24, tasks=2, calibration=0.0)
    before = row_of(learner).memory
    kept = {image.numpy().tobytes(): features for image, features in zip(before.images, before.encoded, strict=True)}
    learner.learn(*TASKS[2], callback=counted)
    after = row_of(learner).memory
    old = [(image, features) for image, features in zip(after.images, after.encoded, strict=True)][:20]
    assert all(torch.equal(features[:2], kept[image.numpy().tobytes()]) for image, features in old)
    assert sum(phase["task"][task] for phase in counted.phases for task in (0, 1)) == 2 * 4


@pytest.mark.parametrize("epochs", [1, 4])
def test_late_adapters_pass_each_training_image_below_them_once(
    epochs: int, new_row: NewRow, counted: Counted
) -> None:
    learner = new_row(memory=10, tasks=1, calibration=0.0, adapt_last=1, epochs=epochs)
    learner.learn(*TASKS[1], callback=counted)
    step1 = counted.phases[0]
    assert step1["below"]["rows"] == 30 + 10  # the task's images and the memory's
    assert step1["task"] == {1: epochs * 60}  # above, every epoch: the memory is upsampled to the task's size


def test_late_adapters_train_on_what_a_pass_of_the_whole_trunk_gives(new_row: NewRow) -> None:
    row = row_of(new_row(tasks=1, adapt_last=1))
    images = prepare(TASKS[0][0], row.trunk.card.preprocessing)
    assert row.protector.frozen_stages == 2
    activations = row.trunk.embed(images)
    for stage in row.trunk.stages[:2]:
        for norm, body in stage:
            activations = activations + body(norm(activations))
    assert torch.equal(row.protector.below(images), activations)


def test_adapters_move_on_free_units_while_a_task_is_learned(new_row: NewRow) -> None:
    learner = new_row(tasks=1, adapt_last=None, grow_below=0.0, width=16)
    old = [
        {key: value.clone() for key, value in layer.bottlenecks[0].state_dict().items()}
        for layer in row_of(learner).protector.layers
    ]
    learner.learn(*TASKS[1])
    for before, layer in zip(old, row_of(learner).protector.layers, strict=True):
        now, free = layer.bottlenecks[0].state_dict(), ~before["hidden_used"]
        assert free.any() and not free.all()
        assert not torch.equal(now["fc1.weight"][free], before["fc1.weight"][free])
        assert not torch.equal(now["fc2.weight"][:, free], before["fc2.weight"][:, free])
        assert torch.equal(now["fc1.weight"][~free], before["fc1.weight"][~free])
