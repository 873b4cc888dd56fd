"""What a model is created with, and what may be changed later."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from oarlock import methods
from oarlock.errors import OarlockError
from oarlock.learner import Learner, load
from oarlock.nets.trunk import BUNDLED

_OF_A_NEW_MODEL = {"method": "--method", "trunk": "--trunk", "seed": "--seed", "options": "--set"}


@dataclass(frozen=True)
class Settings:
    """What a user may ask for; None is what the model has, or for a new model the default."""

    method: str | None = None
    trunk: str | None = None
    weights: str | None = None
    memory: int | None = None
    epochs: int | None = None
    seed: int | None = None
    options: dict[str, str] = field(default_factory=dict)
    device: str = "cpu"
    threads: int | None = None

    def open(self, path: Path) -> Learner:
        """The model in a file, or a new one where there is none."""
        if not path.exists():
            return self._new()
        if fixed := [option for name, option in _OF_A_NEW_MODEL.items() if getattr(self, name) not in (None, {})]:
            raise OarlockError(
                f"{path} exists and keeps its settings: leave out {', '.join(fixed)}, or choose a new file"
            )
        learner = load(path, weights=self.weights, device=self.device)
        if self.memory is not None:
            learner.enlarge_memory(self.memory)
        if self.epochs is not None:
            learner.set_epochs(self.epochs)
        return learner

    def _new(self) -> Learner:
        method, options = self.method or "row", dict[str, Any](self.options)
        if self.epochs is not None:
            if "epochs" in options:
                raise OarlockError("epochs is given twice: use either --epochs or --set epochs=…")
            options["epochs"] = self.epochs
        methods.configure(methods.find(method), options)  # before one of them is taken for an argument below
        chosen = {"memory": self.memory, "seed": self.seed}
        return Learner(
            method,
            trunk=self.trunk or BUNDLED,
            weights=self.weights,
            device=self.device,
            **{name: value for name, value in chosen.items() if value is not None},
            **options,
        )
