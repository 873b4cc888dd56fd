"""Mutate files and use them, as often as is wanted: `make fuzz N=20000`. A finding ends with exit code 1.

python -m fuzz 20000            # cases 0 to 19999
python -m fuzz 1 --first 4711   # case 4711 once more
"""

import argparse
import time
from collections import Counter

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from fuzz.runner import outcomes


def main() -> int:
    asked = argparse.ArgumentParser(prog="python -m fuzz", description="Mutate files that Oarlock reads.")
    asked.add_argument("cases", type=int, help="how many")
    asked.add_argument("--first", type=int, default=0, help="the number of the first")
    given, console, started = asked.parse_args(), Console(), time.monotonic()
    last, findings, most = given.first + given.cases, 0, 0
    ends: Counter[tuple[str, str]] = Counter()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        bar = progress.add_task("mutants", total=given.cases)
        for outcome in outcomes(given.first, last):
            ends[outcome.subject, outcome.end] += 1
            most = max(most, outcome.bytes)
            if outcome.finding:
                findings += 1
                told = f"case {outcome.number}, {outcome.subject}: {outcome.change}\n{outcome.finding}"
                progress.console.print(f"[red]finding[/] {escape(told)}")
                progress.console.print(f"once more: make fuzz N=1 FIRST={outcome.number}\n")
            progress.update(bar, advance=1, description=f"mutants, {findings} findings")
    for subject in sorted({subject for subject, _ in ends}):
        console.print(
            f"{subject:<22}{ends[subject, 'refused']:>8} refused{ends[subject, 'loaded']:>8} taken for good"
        )
    minutes = (time.monotonic() - started) / 60
    console.print(
        f"{sum(ends.values())} cases in {minutes:.1f} min, {findings} findings, "
        f"at most {most / 2**20:.0f} MB of memory for one"
    )
    return 1 if findings else 0


if __name__ == "__main__":
    raise SystemExit(main())
