"""The demo's accuracy beside a linear discriminant that sees all ten classes at once: one JSON line.

The discriminant (scikit-learn's, its defaults) is fitted to the frozen trunk's features of the bundled sample; ROW
learns the same images two classes at a time, in three class orders.
"""

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis

from oarlock.data.images import prepare
from oarlock.data.sources import Labelled, Source, open_source
from oarlock.experiments.config import RunConfig
from oarlock.experiments.run import run
from oarlock.nets.trunks import BUNDLED, load_trunk

ORDERS = (1, 2, 3)


def main() -> None:
    row = [run_order(order) for order in ORDERS]
    line = {
        "name": "demo_vs_lda",
        "orders": ORDERS,
        "row": [round(value, 2) for value in row],
        "row_mean": round(float(np.mean(row)), 2),
        "row_std": round(float(np.std(row, ddof=1)), 2),
        "lda": round(linear_discriminant(open_source("sample")), 2),
    }
    print(json.dumps(line))
    sys.exit(0 if line["row_mean"] >= line["lda"] else 1)


def run_order(order: int) -> float:
    with tempfile.TemporaryDirectory() as out:
        return run(RunConfig("sample", increment=2, order=order), Path(out)).aca


def linear_discriminant(source: Source) -> float:
    """Percent of test images that scikit-learn's LDA on the bare trunk's features gets right."""
    trunk = load_trunk(BUNDLED)

    def features(part: Labelled) -> np.ndarray:
        images = prepare(part.images, trunk.card.preprocessing)
        return np.concatenate([trunk(chunk).numpy() for chunk in images.split(256)])

    fitted = LinearDiscriminantAnalysis().fit(features(source.train), source.train.labels)
    return 100 * float(fitted.score(features(source.test), source.test.labels))


if __name__ == "__main__":
    main()
