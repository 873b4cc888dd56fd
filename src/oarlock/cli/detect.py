"""The command that compares detectors on a trained model: parse, call, print."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from oarlock.cli.common import command
from oarlock.cli.tested import pictures_of, tested
from oarlock.errors import OarlockError
from oarlock.printing import console, put_json, say


@command()
def detect(
    target: Annotated[
        Path, typer.Argument(metavar="RUN_OR_MODEL", help="Directory of a finished run, or a model file.")
    ],
    unknown: Annotated[
        str | None,
        typer.Option(help="Images of no class learned: a folder, or an .npz file. A run may have its own."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="For a model: test images of its classes; if not given, those it kept for thresholds."),
    ] = None,
    accept: Annotated[float, typer.Option(min=1e-6, max=1, help="Share of known images to accept.")] = 0.95,
    weights: Annotated[str | None, typer.Option(help="For a model: a local file with its trunk's weights.")] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", help="Directory for the plot; else the run's, or one beside the model."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Compare all detectors that a trained model can use: how well each tells its classes from unknown images."""
    from oarlock.data.images import prepare
    from oarlock.experiments.detection import detect as measure
    from oarlock.experiments.evaluation import Evaluator
    from oarlock.learner import load
    from oarlock.report.detectors import print_detections, write_detections

    if target.is_dir() or data is not None:
        learner, stream = tested(target, data, weights)
        if unknown is not None:
            stream = replace(stream, unknown=pictures_of(unknown))
        evaluator = Evaluator(stream, learner)
        known, foreign = evaluator.known()[0], evaluator.unknown()
    else:
        learner, known, foreign = load(target, weights=weights), None, None
        if unknown is not None:
            images = prepare(pictures_of(unknown), learner.trunk.rule)
            foreign = learner.method.encode(images, learner.method.feature_sets(len(learner.tasks_)))
    if foreign is None or not len(foreign):
        raise OarlockError(f"{target}: there are no images of unknown classes: say where some are with --unknown")
    found = measure(learner, known, foreign, accept)
    if as_json:
        for one in found:
            put_json(one.to_json())
    else:
        print_detections(found, accept, learner.method.config.detector, console)
    beside = target if target.is_dir() else target.with_name(f"{target.stem}-detectors")
    for path in write_detections(found, out or beside):
        if not as_json:
            say(str(path))
