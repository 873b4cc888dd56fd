"""What it costs to read a model file into memory, against mapping it as earlier versions did. Prints one JSON line.

    python benchmarks/load_model.py [--megabytes 100] [--images 64] [--repeats 5] [--trunk vit_pico] [--threads 2]

A model with a large replay memory is loaded, asked and saved by both sides, in turns. The other side trusts the file:
it maps it with safetensors, copies what is in it into the model without holding the description against anything,
and makes the whole file in memory before it is saved. Both compute the sha256. What must not get worse is loading:
`ratio`, and the goal is 1 / 1.2. Every ratio is theirs over ours, above 1 where checking costs less than mapping.
"""

import json
import tempfile
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import safetensors
import safetensors.torch
import torch
from measuring import Clock, Side, alternate, new_parser, parse, report
from torch import Tensor

from oarlock import Learner, load, loading
from oarlock.files import fingerprint, replacing
from oarlock.nets.trunks import BUNDLED

GOAL = 1 / 1.2
TASK = 8  # images of each class, which decide nothing that is measured


def main() -> None:
    parser = new_parser(__doc__)
    parser.add_argument("--megabytes", type=int, default=100, help="of the model file, about")
    parser.add_argument("--images", type=int, default=64, help="that are predicted")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--trunk", default=BUNDLED)
    given = parse(parser)
    images = np.random.default_rng(0).integers(0, 256, (given.images, 32, 32, 3)).astype("uint8")
    with tempfile.TemporaryDirectory() as folder:
        file, copy = Path(folder) / "model.oar", Path(folder) / "copy.oar"
        large_model(given.trunk, given.megabytes * 10**6).save(file)
        ours, theirs = load(file), load_mapped(file)
        both = {
            "load": (lambda: load(file), lambda: load_mapped(file)),
            "predict": (lambda: ours.predict(images), lambda: theirs.predict(images)),
            "save": (lambda: ours.save(copy), lambda: save_at_once(theirs, copy)),
        }
        times = {name: alternate(*map(timed, sides), given.repeats) for name, sides in both.items()}
        different = np.mean(ours.predict(images) != theirs.predict(images))
        report(
            "load_model",
            times["load"].ratio,
            round(GOAL, 2),
            100 * float(different),
            trunk=given.trunk,
            megabytes=round(file.stat().st_size / 1e6, 1),
            **{name: {"ratio": round(time.ratio, 2), **time.details()} for name, time in times.items()},
        )


def large_model(trunk: str, size: int) -> Learner:
    """A model of one task whose replay memory is filled with noise until the file has so many bytes."""
    random = np.random.default_rng(0)
    dark, bright = random.integers(0, 90, (TASK, 32, 32, 3)), random.integers(160, 255, (TASK, 32, 32, 3))
    learner = Learner("oar", trunk=trunk, memory=size, epochs=1, few=0)
    learner.learn(np.concatenate([dark, bright]).astype("uint8"), ["dark"] * TASK + ["bright"] * TASK)
    memory = learner.method.memory
    count = size // (memory.images[0].nbytes + memory.encoded[0].nbytes + memory.labels[0].nbytes)
    noise = torch.randint(0, 256, (count, *memory.images.shape[1:]), dtype=torch.uint8)
    memory.add_images(noise, torch.zeros(count, dtype=torch.long))
    return learner


def timed(work: Any) -> Side:
    def side(clock: Clock) -> None:
        with clock:
            work()

    return side


def load_mapped(file: Path) -> Learner:
    with safetensors.safe_open(file, "pt") as opened:
        metadata = opened.metadata()
        tensors: dict[str, Tensor] = {name: opened.get_tensor(name) for name in opened.keys()}  # noqa: SIM118
    description = json.loads(metadata["oarlock"])
    written = description.pop("sha256")
    assert fingerprint(tensors, json.dumps(description)) == written
    for name in tensors:
        if name.startswith(("method.", "calibration.")):
            tensors[name] = tensors[name].clone()
    with mock.patch.object(loading, "checked", lambda new, tensors, description: description):
        return Learner.from_state(tensors, description)


def save_at_once(learner: Learner, file: Path) -> None:
    tensors, description = learner.state()
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    described = {**description, "kind": "model", "format": 4}
    described["sha256"] = fingerprint(plain, json.dumps(described))
    with replacing(file) as opened:
        opened.write(safetensors.torch.save(plain, {"oarlock": json.dumps(described)}))


if __name__ == "__main__":
    main()
