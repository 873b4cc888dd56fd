"""Chunks answered by Ray Data: actors on every machine of a cluster, each of which loads the model once."""

import tempfile
from collections.abc import Iterator, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from oarlock.clusters import connected, mistake_in
from oarlock.errors import OarlockError
from oarlock.modelfile.bulk import Answerer, Asking, Chunk, Engine


class Actor:
    """Answer chunks far away; the model came as bytes, for its file may be on another machine's disk."""

    def __init__(self, model: Any, asking: Asking, out: str) -> None:
        import ray

        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "model.oar"
            file.write_bytes(ray.get(model))
            self.answerer = Answerer(file, asking, out)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        self.answerer.answer(Chunk(row["part"], list(row["paths"])))
        return {"part": row["part"]}


def on_ray(on: str) -> Engine:
    """Return what answers chunks on a cluster: the one at the address, or a local one."""

    def engine(model: Path, asking: Asking, out: str, chunks: Sequence[Chunk]) -> Iterator[None]:
        for place in (out, *(path for chunk in chunks for path in chunk.paths)):
            if place.startswith("memory://"):
                raise OarlockError(f"{place}: is in this process alone; --on ray reads and writes where all can")
        with connected(on) as ray, mistake_in(ray):
            for _ in _answered(ray, model, asking, out, chunks).iter_rows():
                yield

    return engine


def _answered(ray: Any, model: Path, asking: Asking, out: str, chunks: Sequence[Chunk]) -> Any:
    """The data set of parts, whose rows come as chunks are answered; only names pass between processes."""
    import_module("ray.data")
    ray.data.DataContext.get_current().enable_progress_bars = False
    items = [{"part": chunk.part, "paths": chunk.paths} for chunk in chunks]
    gpus = 0 if asking.device == "cpu" else 1
    cpus = asking.threads or 1
    there = ray.cluster_resources()
    room = there.get("GPU", 0) if gpus else there.get("CPU", 1) / cpus
    return ray.data.from_items(items, override_num_blocks=len(items)).map(
        Actor,
        fn_constructor_args=(ray.put(model.read_bytes()), asking, out),
        concurrency=max(1, min(int(room), len(items))),
        num_cpus=cpus,
        num_gpus=gpus,
    )
