"""What matters for ROW: one option, or one part (`varied_row.py`), at a time away from ROW's, on validation images.

    python benchmarks/vary_row.py [--protocol c10-5t-mini] [--data PATH] [--out results/row_options.json]
    python benchmarks/vary_row.py --table

A fifth of every class's training images is taken out of training and tested on; test images are never looked at.
Each trial is one run (class order 1, seed 0, one thread). The file is written as trials end, best first; trials
already in it are not repeated.
"""

import argparse
from pathlib import Path
from typing import Any

from search import search
from varied_row import VariedRow

from oarlock.errors import OarlockError
from oarlock.experiments import protocols
from oarlock.files import make_directory, read_json
from oarlock.methods import methods

VARIATIONS: list[dict[str, Any]] = [
    {},
    {"beta": 0.0},
    {"gamma": 1.0},
    {"tau": 1.0},
    {"lamb": 0.1},
    {"lamb": 3.0},
    {"s_max": 100.0},
    {"s_max": 1000.0},
    {"width": 16},
    {"width": 128},
    {"adapt_last": 4},
    {"epochs": 8},
    {"wp_epochs": 0},
    {"ood_epochs": 0},
    {"ood_epochs": 20},
    {"head_lr": 0.03},
    {"shrinkage": 0.02},
    {"shrinkage": 0.5},
    {"grow_below": 0.0},
    {"unit_features": True},
    {"unit_trunk": True},
    {"trunk_views": 2},  # vit_pico has two of a stage
    {"fresh_wp_heads": True},
    {"foreign": 0.25},
    {"foreign": 0.8},
    {"beta": 0.0, "gamma": 1.0},
    {"beta": 0.0, "unit_features": True},
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--protocol", default="c10-5t-mini")
    parser.add_argument("--data")
    parser.add_argument("--out", type=Path, default=Path("results/row_options.json"))
    parser.add_argument("--table", action="store_true", help="show what the file has, and run nothing")
    given = parser.parse_args()
    if given.table:
        print(table(given.out))
        return
    try:
        settings = protocols.run_settings(given.protocol, data=given.data)
    except OarlockError as problem:
        parser.error(str(problem))
    make_directory(given.out.parent)
    methods.register("row-varied")(VariedRow)  # known to this process only
    search("row-varied", settings, given.out, VARIATIONS)


def table(file: Path) -> str:
    """As Markdown, best first."""
    lines = ["| changed | accuracy after the last task, % |", "|---|---|"]
    for trial in read_json(file):
        changed = ", ".join(f"`{name}={value}`" for name, value in trial["options"].items())
        lines.append(f"| {changed or 'nothing'} | {trial['aca']:.1f} |")
    return "\n".join(lines)


if __name__ == "__main__":
    main()
