"""The command that tries trunks, methods and detectors on a user's own photographs: parse, call, print."""

import shlex
from pathlib import Path
from typing import Annotated

import typer

from oarlock.cli.common import AsJsonLines, command
from oarlock.printing import console, put_json, say


@command()
def recommend(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="Your photographs: FOLDER/<class>/*.")],
    minutes: Annotated[
        float, typer.Option(min=0, help="After which no other candidate is begun; the first is always tried.")
    ] = 5.0,
    trunk: Annotated[
        list[str] | None, typer.Option(help="Try this one; again for others. If not given, those at hand.")
    ] = None,
    method: Annotated[list[str] | None, typer.Option(help="Try this one; again for others.")] = None,
    seed: Annotated[int, typer.Option(help="Of what is held out, and of what is left out.")] = 0,
    threads: Annotated[int | None, typer.Option(min=1, help="CPU threads.")] = None,
    as_json: AsJsonLines = False,
) -> None:
    """Say what suits your photographs: try trunks, methods and detectors on photos held out of this folder."""
    import torch

    from oarlock.experiments import recommend as trying
    from oarlock.report.progress import ProgressBar
    from oarlock.report.recommendation import print_trials
    from oarlock.training import Callback

    if threads is not None:
        torch.set_num_threads(threads)
    wanted, split = trying.candidates(trunk, method), trying.Split.of(folder, seed)
    trials: list[trying.Trial] = []

    with ProgressBar() as display:

        def begun(candidate: trying.Candidate, number: int) -> Callback:
            if not as_json:
                display.on_method(" on ".join((candidate.method, candidate.trunk)), number + 1, len(wanted))
            display.on_start(len(split.tasks), 0)
            return display

        try:
            for trial in trying.recommend(split, wanted, 60 * minutes, begun):
                trials.append(trial)
        except KeyboardInterrupt:  # what was tried until then is still worth knowing
            if not trials:
                raise
    best = trying.ranked(trials)
    if as_json:
        for one in best:
            put_json(one.to_json(folder))
        return
    print_trials(best, split, len(wanted), console)
    say(f"try it: {shlex.join(best[0].command(folder))}")
