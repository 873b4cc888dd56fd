"""MLflow: a run in its store, which is where MLflow's own environment variables say."""

import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oarlock.trackers import Tracker, tracker

LONGEST = 6000  # characters that MLflow takes of a parameter


@tracker("mlflow")
class MLflow(Tracker):
    """Keep a run of the experiment in MLFLOW_EXPERIMENT_NAME, or "oarlock"."""

    package = "mlflow"

    def __init__(self, title: str, folder: Path, settings: Mapping[str, Any]) -> None:
        for chatty in ("mlflow", "alembic"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        from mlflow import MlflowClient

        self.client = MlflowClient()
        self.run = self.client.create_run(self._experiment(), run_name=title).info.run_id
        for name, value in settings.items():
            self.client.log_param(self.run, name, _parameter(value))

    def _experiment(self) -> str:
        name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "oarlock")
        found = self.client.get_experiment_by_name(name)
        return self.client.create_experiment(name) if found is None else found.experiment_id

    def log(self, values: Mapping[str, float], axis: str, step: int) -> None:
        for name, value in values.items():
            self.client.log_metric(self.run, name, value, step=step)

    def attach(self, file: Path) -> None:
        self.client.log_artifact(self.run, str(file))

    def close(self, finished: bool) -> None:
        self.client.set_terminated(self.run, "FINISHED" if finished else "KILLED")


def _parameter(value: object) -> str:
    return (value if isinstance(value, str) else json.dumps(value))[:LONGEST]
