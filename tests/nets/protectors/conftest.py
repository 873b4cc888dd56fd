"""Small protectors that learn something, without a method around them."""

import dataclasses
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from oarlock.nets.adapters import AdapterConfig
from oarlock.nets.protectors import Protector, protectors
from oarlock.nets.trunks import Trunk


def images(seed: int = 0, count: int = 12) -> Tensor:
    return torch.randint(0, 256, (count, 3, 16, 16), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)


def make_protector(name: str, trunk: Trunk, **options: Any) -> Protector:
    cls = protectors.find(name)
    own = {key: value for key, value in options.items() if key not in ("width", "adapt_last")}
    bases = (AdapterConfig, cls.Config)
    config = dataclasses.make_dataclass("Both", [], bases=bases, frozen=True)
    shape = {"width": options.get("width", 6), "adapt_last": options.get("adapt_last")}
    return cls(trunk, config(**shape, **own))


def learn(protector: Protector, task: int, optimiser: str = "sgd", steps: int = 20, lr: float = 0.05) -> Tensor:
    """Teach one more task to tell images of four made-up classes; return the activations it saw."""
    random = torch.Generator().manual_seed(task)
    protector.begin_task(random)
    activations = protector.below(images(task))
    head = torch.nn.Linear(protector.trunk.dim, 4)
    for values in head.parameters():
        torch.nn.init.normal_(values, generator=random)
    protector.guard()
    weights, *others = protector.parameter_groups()
    groups = [{**weights, "params": [*weights["params"], *head.parameters()]}, *others]
    if optimiser == "sgd":
        stepper: torch.optim.Optimizer = torch.optim.SGD(groups, lr, momentum=0.9, weight_decay=0.01)
    else:
        stepper = torch.optim.AdamW(groups, lr / 5, weight_decay=0.01)
    for step in range(steps):
        stepper.zero_grad()
        loss = F.cross_entropy(head(protector(activations, task, step / steps)), torch.arange(12) % 4)
        penalty = protector.penalty(step / steps)
        (loss if penalty is None else loss + penalty).backward()
        stepper.step()
        protector.after_step()
    protector.finish_task([activations])
    return activations


def rebuilt(protector: Protector) -> Protector:
    """The same again, by way of its description and its tensors, as a file has them."""
    again = type(protector)(protector.trunk, protector.config)
    again.rebuild(protector.describe())
    again.load_state_dict({name: value.clone() for name, value in protector.state_dict().items()}, assign=True)
    return again


@pytest.fixture(params=["sgd", "adamw"])
def optimiser(request: pytest.FixtureRequest) -> str:
    return request.param
