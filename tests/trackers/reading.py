"""Reads back what trackers keep: every value by its name and step, and the files."""

import json
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

Logged = dict[tuple[str, int], list[float]]


def read_tensorboard(folder: Path) -> tuple[Logged, set[str]]:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
    tags = found.Tags()
    logged: Logged = {}
    for name in tags["scalars"]:
        for event in found.Scalars(name):
            logged.setdefault((name, event.step), []).append(event.value)
    return logged, {name.removesuffix("/text_summary") for name in tags["tensors"]}


def read_mlflow() -> tuple[Logged, set[str], str]:
    """Of the only run in the store."""
    mlflow = pytest.importorskip("mlflow")
    client = mlflow.MlflowClient()
    (run,) = client.search_runs([client.get_experiment_by_name("oarlock").experiment_id])
    logged: Logged = {}
    for name in run.data.metrics:
        for metric in client.get_metric_history(run.info.run_id, name):
            logged.setdefault((name, metric.step), []).append(metric.value)
    assert run.data.params["method"] == "oar"
    return logged, {file.path for file in client.list_artifacts(run.info.run_id)}, run.info.status


def read_wandb(folder: Path) -> tuple[Logged, set[str]]:
    """Of the only offline run: a log as LevelDB writes it, of records as W&B describes them."""
    pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    (file,) = folder.glob("wandb/offline-run-*/*.wandb")
    logged: Logged = {}
    files = set()
    for content in _records(file.read_bytes()):
        record = wandb_internal_pb2.Record.FromString(content)
        values = {
            item.nested_key[0] if item.nested_key else item.key: item.value_json for item in record.history.item
        }
        numbers = {name: json.loads(value) for name, value in values.items() if not name.startswith("_")}
        steps = [numbers.pop(axis) for axis in ("epoch", "tasks") if axis in numbers]
        for name, value in numbers.items():
            logged.setdefault((name, steps[0]), []).append(value)
        files |= {entry.path for entry in record.artifact.manifest.contents}
        files |= {entry.path for entry in record.request.log_artifact.artifact.manifest.contents}
    return logged, files


BLOCK, START, HEADER = 32768, 7, struct.Struct("<IHB")


def _records(log: bytes) -> Iterator[bytes]:
    place, parts = START, b""
    while place + HEADER.size <= len(log):
        if BLOCK - place % BLOCK < HEADER.size:
            place += BLOCK - place % BLOCK
            continue
        _, length, kind = HEADER.unpack_from(log, place)
        parts += log[place + HEADER.size : place + HEADER.size + length]
        place += HEADER.size + length
        if kind in (1, 4):  # whole, or the last part
            yield parts
            parts = b""
