"""All speed benchmarks, one after the other; lines to results/speed.jsonl, plots beside it. `make bench` runs this.

    python benchmarks/run_all.py [--data ../shared/data/cifar100.npz] [--only heads,predict_20]
    python benchmarks/run_all.py --table        # what benchmarks/README.md shows, from the lines there are

A line is replaced by the next one of the same name. Do not use the machine for anything else meanwhile.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from rich.progress import track
from workloads import CIFAR100

FOLDER = Path(__file__).parent
LINES = FOLDER / "results" / "speed.jsonl"
LEARN = ["--images", "60", "--calibration", "0.5", "--epochs", "1"]  # calibration is complete in the seventh task
FORMS = {  # name of the line → script and arguments; those in CLAIMS have a ratio and a goal
    "heads": ["heads.py"],
    "evaluate": ["evaluate.py"],
    "step1": ["step1.py"],
    "step1_late": ["step1_late.py"],
    "predict_10": ["predict_10.py"],
    "predict_20": ["predict_20.py"],
    "whole_run": ["whole_run.py"],
    "predict_cost": ["predict_cost.py"],
    "learn_cost": ["learn_cost.py", *LEARN, "--set", "grow_below=0"],
    "learn_cost_growing": ["learn_cost.py", *LEARN],
    "memory": ["memory.py"],
}
CLAIMS = {
    "heads": "steps 2 and 3 after ten tasks",
    "evaluate": "a stream of 20 tasks evaluated after every task",
    "step1": "step 1, adapters in all stages",
    "step1_late": "step 1, adapters in half of the stages, the rest kept",
    "predict_10": "prediction with a shortlist, 10 tasks",
    "predict_20": "prediction with a shortlist, 20 tasks",
    "whole_run": "the demo with a quarter of its training images",
}
WITH_DATA = {"heads", "evaluate", "predict_10", "predict_20"}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", default=CIFAR100, help="an .npz file with CIFAR-100")
    parser.add_argument("--only", help="names, with commas")
    parser.add_argument("--table", action="store_true")
    given = parser.parse_args()
    if not given.table:
        names = given.only.split(",") if given.only else list(FORMS)
        if unknown := set(names) - FORMS.keys():
            parser.error(f"there is no benchmark {', '.join(sorted(unknown))}; choose among {', '.join(FORMS)}")
        if not Path(given.data).is_file():
            parser.error(f"there is no file {given.data}: give CIFAR-100 as an .npz file with --data")
        for name in track(names, "benchmarks"):
            keep(name, run(name, given.data))
        draw(read())
    print(table(read()))


def run(name: str, data: str) -> dict[str, Any]:
    script, *arguments = FORMS[name]
    if name in WITH_DATA:
        arguments += ["--data", data]
    elif name.startswith("learn_cost"):
        arguments = [data, *arguments]
    done = subprocess.run(
        [sys.executable, FOLDER / script, *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def read() -> dict[str, dict[str, Any]]:
    lines = LINES.read_text().splitlines() if LINES.exists() else []
    return {found["name"]: found for found in map(json.loads, lines)}


def keep(name: str, found: dict[str, Any]) -> None:
    lines = {**read(), name: {**found, "name": name}}
    LINES.parent.mkdir(exist_ok=True)
    LINES.write_text("".join(json.dumps(lines[known]) + "\n" for known in FORMS if known in lines))


def table(lines: dict[str, dict[str, Any]]) -> str:
    rows = ["| benchmark | what | times faster | goal | accuracy, points |", "|---|---|---|---|---|"]
    for name, what in CLAIMS.items():
        if found := lines.get(name):
            difference = found["accuracy_difference"]
            points = "–" if difference is None else f"{difference:+.2f}".replace("+0.00", "0")
            rows.append(f"| `{name}` | {what} | {found['ratio']:.2f} | {found['goal']:g} | {points} |")
        else:
            rows.append(f"| `{name}` | {what} | pending | | |")
    return "\n".join(rows)


def draw(lines: dict[str, dict[str, Any]]) -> None:
    plt.rcParams |= {"svg.hashsalt": "oarlock", "axes.spines.top": False, "axes.spines.right": False}
    if cost := lines.get("predict_cost"):
        figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
        names = {"reference": "reference style", "all": "all tasks", "shortlist": f"shortlist of {cost['shortlist']}"}
        for key, label in names.items():
            axes.loglog(cost["tasks"], cost["ms_per_image"][key], marker="o", label=label)
        axes.set(xlabel="tasks", ylabel="milliseconds per image")
        save(figure, axes, "predict_cost.svg")
    if cost := lines.get("learn_cost"):
        figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
        parts = cost["seconds"]
        axes.stackplot(range(1, 1 + len(cost["seconds_of_task"])), *parts.values(), labels=parts)
        axes.set(xlabel="task", ylabel="CPU seconds")
        save(figure, axes, "learn_cost.svg")


def save(figure: Any, axes: Any, name: str) -> None:
    axes.legend(frameon=False)
    figure.savefig(LINES.parent / name, metadata={"Date": None})
    plt.close(figure)


if __name__ == "__main__":
    main()
