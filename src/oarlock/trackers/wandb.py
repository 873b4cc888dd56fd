"""Weights & Biases: a run where its own environment variables say, with WANDB_MODE=offline in a folder."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oarlock.trackers import Tracker, tracker


@tracker("wandb")
class WandB(Tracker):
    """Keep a run of the project in WANDB_PROJECT, or "oarlock"."""

    package = "wandb"

    def __init__(self, title: str, folder: Path, settings: Mapping[str, Any]) -> None:
        import wandb

        self.wandb = wandb
        self.run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", "oarlock"),
            name=title,
            config=dict(settings),
            reinit="create_new",
            settings=wandb.Settings(silent=True, console="off"),
        )
        self.run.define_metric("*", step_metric="tasks")
        self.run.define_metric("loss/*", step_metric="epoch")

    def log(self, values: Mapping[str, float], axis: str, step: int) -> None:
        self.run.log({**values, axis: step})

    def attach(self, file: Path) -> None:
        artifact = self.wandb.Artifact(f"{self.run.id}-{file.stem}", type=file.stem)
        artifact.add_file(str(file))
        self.run.log_artifact(artifact)

    def close(self, finished: bool) -> None:
        self.run.finish(0 if finished else 1)
