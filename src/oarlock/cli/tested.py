"""What a command measures that is given a run or a model: a learner, and the images it was or will be tested on."""

from pathlib import Path

from oarlock.data.folders import image_files
from oarlock.data.sources import Pictures, open_source
from oarlock.data.streams import Stream
from oarlock.errors import OarlockError
from oarlock.learner import Learner, load


def tested(target: Path, data: str | None, weights: str | None) -> tuple[Learner, Stream]:
    """Return what a run learned and its own stream, or a model and the stream of some data."""
    return _of_run(target, data, weights) if target.is_dir() else _of_model(target, data, weights)


def _of_run(out: Path, data: str | None, weights: str | None) -> tuple[Learner, Stream]:
    import torch

    from oarlock.experiments.config import saved_config

    if data is not None or weights is not None:
        raise OarlockError(f"{out} is a run, which has its own data and trunk: leave out --data and --weights")
    config = saved_config(out)
    if not (out / "result.json").exists():
        raise OarlockError(f"the run in {out} is not finished: oarlock run --resume --out {out}")
    torch.set_num_threads(config.threads)
    return load(out / "model.oar", weights=config.weights, device=config.device), config.stream()


def _of_model(file: Path, data: str | None, weights: str | None) -> tuple[Learner, Stream]:
    learner = load(file, weights=weights)
    if data is None:
        raise OarlockError(f"{file} is a model, which holds no test images: say where they are with --data")
    if learner.columns.first:
        raise OarlockError(f"{file}: one class was learned in parts, and what is measured here has no parts")
    sizes = [len(task) for task in learner.tasks_]
    return learner, Stream.from_source(open_source(data), sizes, [str(label) for label in learner.classes_])


def pictures_of(where: str) -> Pictures:
    """Return all images of a folder, or what a source has of unknown images, or else its test images."""
    if Path(where).is_dir():
        return image_files(Path(where))
    source = open_source(where)
    return source.test.images if source.unknown is None else source.unknown
