"""What a command measures that is given a run or a model: a learner, and the images it was or will be tested on."""

from pathlib import Path
from typing import TYPE_CHECKING

from oarlock.errors import OarlockError

if TYPE_CHECKING:
    from oarlock.data.sources import Pictures
    from oarlock.data.streams import Stream
    from oarlock.learner import Learner


def tested(target: Path, data: str | None, weights: str | None) -> "tuple[Learner, Stream]":
    """Return what a run learned and its own stream, or a model and the stream of some data."""
    return _of_run(target, data, weights) if target.is_dir() else _of_model(target, data, weights)


def _of_run(out: Path, data: str | None, weights: str | None) -> "tuple[Learner, Stream]":
    import torch

    from oarlock.experiments.config import saved_config
    from oarlock.learner import load

    if data is not None or weights is not None:
        raise OarlockError(f"{out} is a run, which has its own data and trunk: leave out --data and --weights")
    config = saved_config(out)
    if not (out / "result.json").exists():
        raise OarlockError(f"the run in {out} is not finished: oarlock run --resume --out {out}")
    torch.set_num_threads(config.threads)
    return load(out / "model.oar", weights=config.weights, device=config.device), config.stream()


def _of_model(file: Path, data: str | None, weights: str | None) -> "tuple[Learner, Stream]":
    from oarlock.data.sources import is_split, open_source
    from oarlock.data.streams import Stream
    from oarlock.learner import load

    learner = load(file, weights=weights)
    if data is None:
        raise OarlockError(f"{file} is a model, which holds no test images: say where they are with --data")
    if learner.columns.first:
        raise OarlockError(f"{file}: one class was learned in parts, and what is measured here has no parts")
    sizes = [len(task) for task in learner.tasks_]
    whole = Path(data).is_dir() and not is_split(Path(data))  # nothing of it is to be learned, so all of it is tested
    source = open_source(data, test=data if whole else None)
    return learner, Stream.from_source(source, sizes, [str(label) for label in learner.classes_])


def pictures_of(where: str) -> "Pictures":
    """Return all images of a folder, or what a source has of unknown images, or else its test images."""
    from oarlock.data.folders import image_files
    from oarlock.data.sources import open_source

    if Path(where).is_dir():
        return image_files(Path(where))
    source = open_source(where)
    return source.test.images if source.unknown is None else source.unknown
