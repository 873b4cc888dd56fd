"""The command that runs the theory: parse, call, print."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from oarlock.cli.common import command
from oarlock.cli.tested import pictures_of, tested
from oarlock.errors import OarlockError
from oarlock.printing import console, put_json, say


@command()
def theory(
    target: Annotated[
        Path | None,
        typer.Argument(metavar="RUN_OR_MODEL", help="Directory of a finished run, or a model file."),
    ] = None,
    data: Annotated[
        str | None,
        typer.Option(help="For a model: test images of its classes: an .npz file, a folder, cifar10, …"),
    ] = None,
    unknown: Annotated[
        str | None, typer.Option(help="Images of no class learned: a folder, or an .npz file (unknown_x or test_x).")
    ] = None,
    alpha: Annotated[
        float | None, typer.Option(help="Share of unknown images in every task: 0.1; without such images 0.")
    ] = None,
    weights: Annotated[str | None, typer.Option(help="For a model: a local file with its trunk's weights.")] = None,
    curve: Annotated[
        bool, typer.Option("--curve", help="Instead: a synthetic world, with more and more samples.")
    ] = False,
    out: Annotated[Path | None, typer.Option("--out", help="With --curve: directory of its figure and page.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object per line.")] = False,
) -> None:
    """Try the paper's theorems on a trained model: risks of its detectors, what is built of them, and the bounds."""
    if curve:
        if (target, data, unknown, alpha, weights) != (None,) * 5:
            raise OarlockError("--curve makes its own world: leave out everything but --out and --json")
        _curve(out, as_json)
        return
    if target is None:
        raise OarlockError("say which model: oarlock theory RUN, oarlock theory MODEL.oar --data …, or --curve")
    if out is not None:
        raise OarlockError("--out goes with --curve; a run's numbers go into its own report")
    _certify(target, data, unknown, alpha, weights, as_json)


def _certify(
    target: Path, data: str | None, unknown: str | None, alpha: float | None, weights: str | None, as_json: bool
) -> None:
    from oarlock.experiments.evaluation import Evaluator
    from oarlock.report.run_page import write_report
    from oarlock.report.theory import print_certificate
    from oarlock.theory.certificate import certify, check_ood_heads, write_certificate

    of_a_run = target.is_dir()
    learner, stream = tested(target, data, weights)
    check_ood_heads(learner.method)
    if unknown is not None:
        stream = replace(stream, unknown=pictures_of(unknown))
    evaluator = Evaluator(stream, learner)
    certificate = certify(learner, *evaluator.known(), evaluator.unknown(), alpha)
    if as_json:
        put_json(certificate.to_json())
    else:
        print_certificate(certificate, console)
    if of_a_run:
        write_certificate(certificate, target)
        page = write_report(target)
        if not as_json:
            say(f"report: {page}")


def _curve(out: Path | None, as_json: bool) -> None:
    from oarlock.report.theory import print_curve, write_curve
    from oarlock.theory.curve import curve

    points = list(curve())
    for point in points if as_json else ():
        put_json(point.to_json())
    if not as_json:
        print_curve(points, console)
    for path in write_curve(points, out) if out is not None else ():
        if not as_json:
            say(str(path))
