"""What a model knows, to be looked at: classes with the photos it keeps, confusions, lessons."""

import io
from pathlib import Path
from typing import Any

import torch
from PIL import Image

from oarlock.data.jpeg import to_jpeg
from oarlock.learner import load
from oarlock.modelfile.export import export_onnx
from oarlock.modelfile.inspect import tasks_of
from oarlock.studio.answers import finite
from oarlock.studio.bench import Bench
from oarlock.studio.current import Loaded
from oarlock.studio.refusals import Refusal
from oarlock.studio.reports import promises

PHOTOS = 12  # of a class in the gallery
CONFUSIONS = 3  # of a class, the commonest


class Gallery:
    """Show the model as it is now."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def facts(self) -> dict[str, Any] | None:
        """Return what the page needs to know of the model before anything is asked; None where there is none."""
        model = self.bench.models.get()
        if model is None:
            return None
        learner = model.learner
        return {
            "name": self.bench.store.model.name,
            "version": model.version,
            "method": learner.method.name,
            "trunk": learner.trunk.card.name,
            "tasks": [[str(label) for label in task] for task in learner.tasks_],
            "calibration": len(learner.calibration),
            "needs_memory": learner.method.needs_memory,
            "thresholds": [[accept, finite(threshold)] for accept, threshold in model.thresholds],
        }

    def classes(self) -> dict[str, Any]:
        """Return every class by task: counts, the photos kept of it, what its calibration photos are taken for."""
        model = self.bench.models.need()
        tasks, column = tasks_of(model.learner), 0
        labels = model.learner.classes_.tolist()
        for task in tasks:
            for one in task["classes"]:
                one["photos"] = [f"{kind}-{row}" for kind, row in self._kept(model, column)]
                one["confusions"] = _confusions(model, labels.index(one["label"]), labels)
                one["label"] = str(one["label"])
                column += 1
        edits = [edit.describe() for edit in model.learner.edits_]
        return {"version": model.version, "tasks": tasks, "edits": edits, **self._size(model)}

    def _size(self, model: Loaded) -> dict[str, Any]:
        method = model.learner.method
        capacity = method.capacity()
        return {
            "bytes": self.bench.store.model.stat().st_size,
            "memory": {"room": method.budget if method.needs_memory else None, "images": len(method.memory)},
            "free_capacity": None if capacity is None else capacity.free,
        }

    def _kept(self, model: Loaded, column: int) -> list[tuple[str, int]]:
        found: list[tuple[str, int]] = []
        for kind, store in _stores(model).items():
            rows = torch.nonzero(store.labels.cpu() == column).flatten().tolist()
            found += [(kind, row) for row in rows]
        return found[:PHOTOS]

    def photo(self, version: str, kind: str, row: int) -> bytes:
        """Return a photo that the model keeps, as a file."""
        model = self.bench.models.need()
        store = _stores(model).get(kind)
        if model.version != version or store is None or not 0 <= row < len(store):
            raise Refusal(404, "the model keeps no such photo (any more)")
        pixels = store.images[row].cpu()
        if pixels.shape[-1] >= 64:
            return to_jpeg(pixels[None])[0]
        drawn = io.BytesIO()
        Image.fromarray(pixels.permute(1, 2, 0).contiguous().numpy()).save(drawn, "PNG")
        return drawn.getvalue()

    def verify(self) -> dict[str, Any]:
        """Ask finished tasks again what they were asked when they were learned."""
        return promises(self.bench.models.need())

    def export(self) -> None:
        """Write the model as an ONNX graph beside the board."""
        self.bench.models.need()
        export_onnx(load(self.bench.store.model, weights=self.bench.weights), self.bench.store.graph)

    def graph(self) -> Path:
        """Return where the graph of the model is, as it is now."""
        store = self.bench.store
        self.bench.models.need()
        if not store.graph.is_file() or store.graph.stat().st_mtime_ns < store.model.stat().st_mtime_ns:
            raise Refusal(404, "there is no graph of this model: export it first")
        return store.graph


def _stores(model: Loaded) -> dict[str, Any]:
    return {"memory": model.learner.method.memory, "calibration": model.learner.calibration}


def _confusions(model: Loaded, number: int, labels: list[Any]) -> dict[str, Any]:
    row = model.confusions[number].tolist()
    others = sorted(((count, name) for name, count in enumerate(row) if count and name != number), reverse=True)
    return {
        "photos": sum(row),
        "right": row[number],
        "others": [{"label": str(labels[name]), "photos": count} for count, name in others[:CONFUSIONS]],
    }
