"""The command that tells what a grid of runs would cost: parse, call, print."""

import math
from typing import Annotated, Any

import typer
from rich.table import Table

from oarlock.cli.common import AsJsonLines, Set, command, parse_options
from oarlock.errors import OarlockError
from oarlock.printing import complain, console, put_json, say


@command()
def plan(
    protocol: Annotated[str, typer.Option(help="One or several: c10-5t-mini,c100-10t-mini.")],
    methods: Annotated[str, typer.Option(help="Which methods: row,slda,finetune, or all.")] = "all",
    orders: Annotated[int, typer.Option(help="How many class orders, from the first.")] = 1,
    trunk: Annotated[str | None, typer.Option(help="The frozen network; the protocol's if not given.")] = None,
    threads: Annotated[int, typer.Option(help="CPU threads of each run.")] = 1,
    machines: Annotated[int, typer.Option(help="How many machines like this one share the runs.")] = 1,
    options: Set = None,
    as_json: AsJsonLines = False,
) -> None:
    """Tell what a grid of runs would cost if this machine did nothing else, from a probe of each method."""
    from oarlock.experiments.cost import cost_all
    from oarlock.experiments.plan import Plan, Request, Settings
    from oarlock.experiments.series import named

    if machines < 1:
        raise OarlockError(f"{machines} machines: choose 1 or more")
    listed, planned = named(methods), Plan()
    for name in protocol.split(","):
        settings = Settings(name.strip(), trunk=trunk, threads=threads)
        planned = planned.extended(
            Request(settings, listed, orders, dict.fromkeys(listed, parse_options(options or [])))
        )
    costs = cost_all(planned.runs(), complain)
    if as_json:
        for run, cost in costs:
            put_json({"protocol": run.settings.column, "order": run.order, "method": run.method, **cost._asdict()})
    else:
        _show(costs, machines)


def _show(costs: list[Any], machines: int) -> None:
    from oarlock.experiments.cost import hours

    table = Table("protocol", "method", "runs", "passes of a run", "hours of a run", box=None)
    for column, method in dict.fromkeys((run.settings.column, run.method) for run, _ in costs):
        ours = [cost for run, cost in costs if (run.settings.column, run.method) == (column, method)]
        table.add_row(column, method, str(len(ours)), f"{ours[0].passes:,}", words(ours[0].seconds / 3600))
    console.print(table)
    every = [cost for _, cost in costs]
    say(
        "",
        f"{len(every)} runs, {sum(cost.passes for cost in every):,} passes of an image through the bare trunk: "
        f"{words(hours(every, 1))} h on this machine, one after the other"
        + (f"; {words(hours(every, machines))} h on {machines} like it" if machines > 1 else ""),
    )


def words(number: float) -> str:
    """Return a number with as many digits as a probe is worth.

    >>> words(0.01234), words(12.34), words(1234.5)
    ('0.012', '12', '1,200')
    """
    digits = 1 - math.floor(math.log10(number)) if number > 0 else 0
    return f"{round(number, digits):,.{max(digits, 0)}f}"
