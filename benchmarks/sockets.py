"""The paper's sentence, tried: any protector + any OOD detector = a class-incremental learner.

    python benchmarks/sockets.py c10-5t-lite --data cifar10.npz [--protectors hat,own] [--out benchmarks/results]
    python benchmarks/sockets.py photos --data grocery/train --test grocery/test
    python benchmarks/sockets.py --table; python benchmarks/sockets.py --plot

Every protector is trained once, by the method `oar`, which trains as ROW does (on photographs with `few=0`, so that
adapters are trained although there are few). Then every detector that gives each task a score of its own chooses the
task, and the WP head the class within it: that is a class-incremental learner of the paper's kind. Measured of it, on
test images: how well a task's score tells the task's images from those of all others (AUROC, mean over tasks), the
accuracy over all classes, and, with every detector claiming what reaches the line that 95 % of its task's
calibration images reach, the mean risk of the detectors and the bound of the paper's Corollary on what they do
together. `row` and `oar` are these methods' own formulas.

Scores of different tasks are compared as they are, and as well (`levelled`) in units of the task's own calibration
images: their mean and spread. One JSON line for every pair; pairs that are in the file are not measured again.
"""

import argparse
import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor

from oarlock import Learner
from oarlock.data.folders import files_by_class
from oarlock.data.images import prepare_in_chunks
from oarlock.detectors import detectors
from oarlock.detectors.normalised import normalised
from oarlock.detectors.pooled import PooledGaussians
from oarlock.experiments import metrics, protocols
from oarlock.experiments.detection import usable
from oarlock.nets.protectors import protectors
from oarlock.theory import statements

ACCEPT = 0.95
OF_STATISTICS: dict[str, Callable[..., Tensor]] = {
    "relative": PooledGaussians.relative,
    "direction": PooledGaussians.cosines,
    "ridge": PooledGaussians.ridge,
    "nearest": lambda statistics, bare: -statistics.distances(bare),
    "relative-normalised": lambda statistics, bare: normalised(statistics).relative(F.normalize(bare)),
    "nearest-normalised": lambda statistics, bare: -normalised(statistics).distances(F.normalize(bare)),
}
PHOTO_CLASSES, PHOTO_TASK, LEAST = 50, 10, 18


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stream", nargs="?", help="a protocol's name, or `photos`")
    parser.add_argument("--data", help="the protocol's data, or the folder of training photos")
    parser.add_argument("--test", help="the folder of test photos")
    parser.add_argument("--protectors", help="a comma list; all if not given")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    parser.add_argument("--table", action="store_true", help="only print what is in the file")
    parser.add_argument("--plot", action="store_true", help="only draw what is in the file")
    asked = parser.parse_args()
    file = asked.out / "sockets.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []
    if asked.table:
        print_table(lines)
    elif asked.plot:
        for stream in dict.fromkeys(line["stream"] for line in lines):
            draw([line for line in lines if line["stream"] == stream], asked.out / f"sockets_{stream}.svg")
    else:
        torch.set_num_threads(asked.threads)
        done = {line["protector"] for line in lines if line["stream"] == asked.stream}
        names = asked.protectors.split(",") if asked.protectors else sorted(protectors.all())
        for name in [name for name in names if name not in done]:
            measured = [
                json.dumps({"stream": asked.stream, "protector": name, **one}) for one in measure(asked, name)
            ]
            with open(file, "a", encoding="utf-8") as out:
                out.write("".join(f"{line}\n" for line in measured))
            print("\n".join(measured), flush=True)


def measure(asked: argparse.Namespace, protector: str) -> Iterator[dict[str, Any]]:
    """Train with a protector, and yield what comes of every detector."""
    learner, images, labels = taught(asked, protector)
    method, tasks = learner.method, len(learner.tasks_)
    sets = method.feature_sets(tasks)
    truth = torch.tensor([learner.classes_.tolist().index(label) for label in labels])
    with torch.no_grad():
        encoded = torch.cat(list(encode_in_chunks(learner, images, sets)))
        within = torch.cat([method.within_task(encoded, t).log_softmax(1) for t in range(tasks)], 1)
        for formula, scores in (("oar", method.scores(encoded)), ("row", method.variants["row"](method, encoded))):
            chosen = torch.stack([part.logsumexp(1) for part in scores.split(method.classes_per_task, 1)], 1)
            auroc = per_task_auroc(chosen.log_softmax(1), method.tasks_of(truth))
            yield {"detector": formula, "formula": True, "aca": percent(scores.argmax(1) == truth), "auroc": auroc}
        for name, columns_of in columns_by_detector(method).items():
            columns, kept = columns_of(encoded), columns_of(learner.calibration.encoded)
            if columns.shape[1] == tasks:
                yield {"detector": name, **of_detector(learner, columns, kept, within, truth)}


def columns_by_detector(method: Any) -> dict[str, Callable[[Tensor], Tensor]]:
    """Return for every detector what gives each task's scores, a column each. Those of the bare trunk's statistics
    score all classes at once; a task's score is the best of its classes'."""

    def of_statistics(measure: Callable[..., Tensor]) -> Callable[[Tensor], Tensor]:
        def columns(encoded: Tensor) -> Tensor:
            return torch.stack(method.best_of_tasks(measure(method.trunk_gaussians, method.bare(encoded))), 1)

        return columns

    found = {name: partial(known_to_tasks, method, name) for name in usable(method.at_hand())}
    return found | {name: of_statistics(measure) for name, measure in OF_STATISTICS.items()}


def known_to_tasks(method: Any, detector: str, encoded: Tensor) -> Tensor:
    return detectors.find(detector).scores(method, encoded)


def of_detector(learner: Learner, columns: Tensor, kept: Tensor, within: Tensor, truth: Tensor) -> dict[str, Any]:
    """Return what a detector comes to when it chooses the task: [B, T] scores of test and of calibration images."""
    method, tasks = learner.method, columns.shape[1]
    task = method.tasks_of(truth)
    of_kept = method.tasks_of(learner.calibration.labels)
    own = [kept[of_kept == t, t] for t in range(tasks)]
    middle, spread = (torch.stack([of(part) for part in own]) for of in (torch.mean, torch.std))
    levelled = (columns - middle) / spread.clamp_min(1e-6)

    inside = [part.argmax(1) for part in within.split(method.classes_per_task, 1)]
    classes = torch.stack([best + method.class_slice(t).start for t, best in enumerate(inside)], 1)

    def right(scores: Tensor) -> Tensor:
        return classes.gather(1, scores.argmax(1, keepdim=True))[:, 0] == truth

    lines = torch.stack([torch.quantile(part, 1 - ACCEPT) for part in own])
    said = torch.where(columns >= lines, classes, statements.O).numpy()
    shares = np.bincount(task.numpy()) / len(task)
    world = statements.mixture(task.numpy(), truth.numpy(), shares, np.zeros(tasks))
    bound = statements.corollary(world, said)
    together = statements.order_free(said, levelled.numpy())
    return {
        "formula": False,
        "aca": percent(right(columns)),
        "aca_levelled": percent(right(levelled)),
        "auroc": per_task_auroc(columns, task),
        "task_right": percent(columns.argmax(1) == task),
        "detector_risk": round(float(np.mean(bound.detector_risks)), 4),
        "risk": round(float(statements.risks(world, together)[-1]), 4),
        "bound": round(float(bound.values[-1]), 4),
    }


def per_task_auroc(columns: Tensor, task: Tensor) -> float:
    """Return how well a task's scores tell its images from those of all other tasks, mean over tasks."""
    found = [
        metrics.auroc(columns[task == t, t].numpy(), columns[task != t, t].numpy()) for t in range(columns.shape[1])
    ]
    return round(float(np.mean(found)), 4)


def percent(right: Tensor) -> float:
    return round(100 * float(right.double().mean()), 2)


def encode_in_chunks(learner: Learner, images: Any, sets: Any) -> Iterator[Tensor]:
    for chunk in prepare_in_chunks(images, learner.trunk.card.preprocessing, 64):
        yield learner.method.encode(chunk, sets).cpu()


def taught(asked: argparse.Namespace, protector: str) -> tuple[Learner, Any, list[Any]]:
    """Return a learner of the whole stream, and the test images with their labels."""
    if asked.stream == "photos":
        files = {name: paths for name, paths in files_by_class(Path(asked.data)).items() if len(paths) >= LEAST}
        names = sorted(files)
        random.Random(100).shuffle(names)
        names = names[:PHOTO_CLASSES]
        learner = Learner("oar", memory=200, protector=protector, few=0, epochs=12)
        for start in range(0, len(names), PHOTO_TASK):
            pairs = [(path, name) for name in names[start : start + PHOTO_TASK] for path in files[name]]
            learner.learn([path for path, _ in pairs], [name for _, name in pairs])
        there = files_by_class(Path(asked.test))
        found = [(path, name) for name in names for path in there[name]]
        return learner, [path for path, _ in found], [name for _, name in found]
    protocol = protocols.find(asked.stream)
    source = protocol.source(asked.data)
    options = {**protocol.options("oar"), "protector": protector}
    learner = Learner("oar", trunk=protocol.trunk, memory=protocol.memory, **options)
    names = list(source.classes)
    random.Random(100).shuffle(names)
    for start in range(0, len(names), protocol.classes_per_task):
        part = source.train.of(set(names[start : start + protocol.classes_per_task]))
        learner.learn(part.images, part.labels.tolist())
    return learner, source.test.images, source.test.labels.tolist()


def print_table(lines: list[dict[str, Any]]) -> None:
    """Print for every detector its accuracy under each protector, levelled and as scores are, and how good it is as a
    task's detector, as a mean over protectors."""
    for stream in dict.fromkeys(line["stream"] for line in lines):
        own = [line for line in lines if line["stream"] == stream]
        columns = sorted({line["protector"] for line in own})
        print(f"\n{stream}\n\n| task chosen by | {' | '.join(columns)} | AUROC | risk of one | of all | bound |")
        print("|---" * (len(columns) + 5) + "|")
        by_detector = {line["detector"]: [one for one in own if one["detector"] == line["detector"]] for line in own}
        for name, found in sorted(by_detector.items(), key=lambda item: -max(map(accuracy_of, item[1]))):
            cells = {one["protector"]: shown(one) for one in found}
            means = [mean_of(found, key) for key in ("auroc", "detector_risk", "risk", "bound")]
            print(f"| `{name}` | {' | '.join(cells.get(column, '') for column in columns)} | {' | '.join(means)} |")
        pairs = [one for one in own if not one["formula"]]
        for what in ("aca", "aca_levelled"):
            order = spearmanr([one["auroc"] for one in pairs], [one[what] for one in pairs]).statistic
            print(f"\nRank correlation of AUROC and {what}: {order:.2f} ({len(pairs)} pairs)")


def accuracy_of(line: dict[str, Any]) -> float:
    return float(line["aca"] if line["formula"] else line["aca_levelled"])


def shown(line: dict[str, Any]) -> str:
    return f"{line['aca']:.1f}" if line["formula"] else f"{line['aca_levelled']:.1f} / {line['aca']:.1f}"


def mean_of(lines: list[dict[str, Any]], key: str) -> str:
    return f"{np.mean([line[key] for line in lines]):.2f}" if key in lines[0] else ""


def draw(lines: list[dict[str, Any]], file: Path) -> None:
    """Draw what better detectors give: accuracy over all classes, and risk beside its bound; a mark a pair."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9.6, 4.2), layout="constrained")
    accuracy, risk = figure.subplots(1, 2)
    for name, mark in zip(sorted({line["protector"] for line in lines}), "os^DvPX", strict=False):
        pairs = [line for line in lines if line["protector"] == name and not line["formula"]]
        levelled = [one["aca_levelled"] for one in pairs]
        accuracy.plot([one["auroc"] for one in pairs], levelled, mark, label=name, alpha=0.8)
        risk.plot([one["bound"] for one in pairs], [one["risk"] for one in pairs], mark, label=name, alpha=0.8)
    accuracy.set_xlabel("a task's detector against all other tasks: AUROC, mean over tasks")
    accuracy.set_ylabel("accuracy over all classes, scores levelled, %")
    accuracy.legend(title="protector", frameon=False)
    risk.axline((0, 0), slope=1, color="0.7", linewidth=1)
    risk.set_xlim(left=0)
    risk.set_ylim(0, 1)
    risk.set_xlabel("bound of the Corollary (vacuous above 1)")
    risk.set_ylabel("risk of what claims are made into")
    figure.savefig(file)


if __name__ == "__main__":
    main()
