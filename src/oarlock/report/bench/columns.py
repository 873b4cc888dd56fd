"""The protocols found in a directory of runs, each with its methods' means over class orders."""

from dataclasses import dataclass
from pathlib import Path

from oarlock.bench.plan import Plan
from oarlock.errors import OarlockError
from oarlock.protocols import DEIT, PAPER, PROTOCOLS
from oarlock.report.bench.paper import paper_number
from oarlock.report.comparison import Comparison, compare
from oarlock.report.comparison.summary import MethodSummary, Spread


@dataclass(frozen=True)
class Column:
    """One protocol, with one size of memory."""

    name: str
    protocol: str | None  # None: a stream that has no name
    memory: str  # "", "half" or "memory-50", as in the directory's name
    comparison: Comparison | None  # None: no run is finished
    planned: dict[str, int]  # class orders by method

    @property
    def methods(self) -> set[str]:
        return {method.name for method in self.summaries} | self.planned.keys()

    @property
    def summaries(self) -> list[MethodSummary]:
        return [] if self.comparison is None else self.comparison.methods

    def summary(self, method: str) -> MethodSummary | None:
        return next((summary for summary in self.summaries if summary.name == method), None)

    @property
    def modelled_on(self) -> str | None:
        """The paper's protocol."""
        return None if self.protocol is None else next((n for n in PAPER if self.protocol.startswith(n)), None)

    @property
    def as_in_the_paper(self) -> bool:
        """Whether the paper's number is of the same stream, images and trunk; else it is for orientation."""
        if self.comparison is None or self.protocol != self.modelled_on:
            return False
        setting = self.comparison.setting
        return setting["trunk"] == DEIT and setting["overlap"] != "yes" and not setting.get("partial")

    def paper(self, measure: str, method: str) -> Spread | None:
        if self.modelled_on is None or self.memory not in ("", "half"):
            return None
        if measure == "entries" and not self.as_in_the_paper:
            return None  # the size of another trunk is no orientation
        return paper_number(measure, self.modelled_on, method, half_memory=self.memory == "half")


def find_columns(directory: Path) -> list[Column]:
    """The columns in a directory of `oarlock bench`, planned or finished; or of the runs of one protocol."""
    if not directory.is_dir():
        raise OarlockError(f"there is no directory {directory}")
    plan = Plan.load(directory)
    if any(directory.glob("order-*/")):
        found, plan = [directory], Plan.load(directory.resolve().parent).only(directory.resolve().name)
    else:
        found = sorted({result.parents[2] for result in directory.glob("*/*/*/result.json")})
    columns = [_finished(place, plan) for place in found]
    waiting = plan.columns.keys() - {column.name for column in columns}
    columns += [_waiting(name, plan) for name in waiting]
    if not columns:
        raise OarlockError(f"there is no finished run in {directory}, and none is planned")
    return sorted(columns, key=_place)


def _finished(place: Path, plan: Plan) -> Column:
    comparison, name = compare([place]), place.resolve().name
    protocol = comparison.setting["protocol"]
    own = protocol is not None and name.startswith(protocol)
    memory = name.removeprefix(protocol).removeprefix("-") if own else ""
    return Column(name, protocol, memory, comparison, plan.orders(name))


def _waiting(name: str, plan: Plan) -> Column:
    settings, _ = plan.columns[name]
    return Column(name, settings.protocol, settings.memory_kind, None, plan.orders(name))


def _place(column: Column) -> tuple[int, str]:
    """The protocols in the order in which they are listed."""
    names = list(PROTOCOLS)
    return names.index(column.protocol) if column.protocol in names else len(names), column.name
