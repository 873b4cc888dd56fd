"""Which of TPL's two parts chooses the task better? The same training, once with each and once with both.

    python benchmarks/tpl_parts.py [SOURCE] [--order N] [--validation SHARE] [--threads N]

A share of every class's training images is taken out of training and tested on; test images are never looked at.
Prints one JSON line of accuracies over all classes after the last task. Every score is calibrated on the memory.
"""

import argparse
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torch import Tensor

from oarlock.experiments.config import RunConfig
from oarlock.experiments.run import run
from oarlock.methods import methods
from oarlock.methods.tpl import Tpl, TplConfig

PARTS = ("both", "md_knn", "mls")


@dataclass(frozen=True)
class PartConfig(TplConfig):
    part: Literal["both", "md_knn", "mls"] = "both"


class TplByPart(Tpl):
    """TPL that chooses the task by a part of its score."""

    Config = PartConfig
    config: PartConfig

    def raw_scores(self, encoded: Tensor) -> Tensor:
        if self.config.part == "both":
            return super().raw_scores(encoded)
        return self.parts(encoded)[PARTS.index(self.config.part) - 1]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("source", nargs="?", default="sample")
    parser.add_argument("--order", type=int, default=1)
    parser.add_argument("--validation", type=float, default=0.3)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    methods.register("tpl-by-part")(TplByPart)  # known to this process only
    configs = {part: RunConfig(**vars(given), method="tpl-by-part", options={"part": part}) for part in PARTS}
    accuracies = {part: accuracy(config) for part, config in configs.items()}
    print(json.dumps({"name": "tpl_parts", "order": given.order, **accuracies}))


def accuracy(config: RunConfig) -> float:
    with tempfile.TemporaryDirectory() as out:
        return round(float(run(config, Path(out)).aca), 2)


if __name__ == "__main__":
    main()
