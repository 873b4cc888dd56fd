"""What methods let their users set, and how a configuration is made of it."""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Literal

from torch.optim import SGD, AdamW, Optimizer

from oarlock.detectors import EvidenceOf, detectors
from oarlock.errors import OarlockError
from oarlock.nets.adapters import AdapterConfig
from oarlock.nets.protectors import protectors
from oarlock.options import fill, option

if TYPE_CHECKING:
    from oarlock.methods._base import Method


@dataclass(frozen=True)
class MethodConfig:
    """Hold the options that every method has."""

    detector: str = "own"  # what unknown inputs are told by


@dataclass(frozen=True)
class TrainConfig(MethodConfig):
    """Say how networks are trained; the defaults are ours, chosen on validation images for `vit_pico`."""

    epochs: int = option(4, least=0)
    batch: int = option(64, least=1)  # joined by as many images from memory where there is replay
    optimiser: Literal["sgd", "adamw"] = "sgd"
    lr: float = option(0.03, least=0)
    momentum: float = option(0.9, least=0, most=1)
    weight_decay: float = option(0.0, least=0)

    def new_optimiser(self, parameters: Iterable[Any], lr: float) -> Optimizer:
        """Return an optimiser of the kind that was chosen."""
        if self.optimiser == "adamw":
            return AdamW(parameters, lr, weight_decay=self.weight_decay)
        return SGD(parameters, lr, self.momentum, weight_decay=self.weight_decay)


@dataclass(frozen=True)
class SharedConfig(AdapterConfig, TrainConfig):
    """Hold the options of methods with one network for all tasks."""


@dataclass(frozen=True)
class ProtectedConfig(AdapterConfig, TrainConfig):
    """Hold the options of methods whose tasks a protector keeps apart; the protector's own stand beside these."""

    protector: str = "hat"


@cache
def config_class(method: "type[Method]", protector: str | None = None) -> type:
    """Return what a method's configuration is: its own options and, in the same flat set, those of its protector."""
    if not issubclass(method.Config, ProtectedConfig):
        return method.Config
    guard = protectors.find(protector or method.Config.protector)
    return dataclasses.make_dataclass(
        f"{method.Config.__name__}With{guard.__name__}", [], bases=(method.Config, guard.Config), frozen=True
    )


def configure(method: "type[Method]", options: Mapping[str, Any]) -> Any:
    """Return a method's configuration from options, whose values may be text from a command line.

    >>> from oarlock.methods import methods
    >>> config = configure(methods.find("row"), {"lr": "0.01", "s_max": 500})
    >>> config.lr, config.s_max, config.protector
    (0.01, 500.0, 'hat')
    """
    config = fill(config_class(method, options.get("protector")), options, method.name)
    check_detector(config.detector, method.name, method.evidence)
    return config


def check_detector(detector: str, method: str, evidence: Mapping[str, EvidenceOf]) -> None:
    """Refuse a detector that needs other evidence, and say which do not."""
    if missing := detectors.find(detector).missing(evidence):
        able = sorted(name for name, one in detectors.all().items() if not one.missing(evidence))
        raise OarlockError(
            f"option detector={detector!r} needs {', '.join(missing)}, which {method} does not have; "
            f"it can use {', '.join(able)}"
        )
