"""What a grid of runs consists of: `bench.json`."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from oarlock.data.streams import SHUFFLES
from oarlock.errors import OarlockError
from oarlock.experiments.config import MOST_THREADS, RunConfig
from oarlock.experiments.protocols import HALF, find, has_paper_settings, run_settings
from oarlock.experiments.series import trainings
from oarlock.files import read_json, write_json
from oarlock.methods import methods
from oarlock.schema import boolean, either, integer, mapping, maybe, number, one_of, record, text, undamaged
from oarlock.upgrades import FORMAT, NAMED, is_newer, upgrade_name

FILE = "bench.json"


PATH = maybe(text(4096))
SETTINGS = record(
    {"protocol": text(100)},
    {
        "memory": maybe(either(integer(1), one_of(HALF))),
        "data": PATH,
        "partial": boolean,
        "trunk": maybe(text(200)),
        "weights": PATH,
        "device": text(100),
        "seed": integer(),
        "threads": integer(1, MOST_THREADS),
    },
)
OPTIONS = mapping(maybe(either(boolean, text(200), number())), most=200)
SHARE = record({"orders": integer(1, SHUFFLES)}, {"options": OPTIONS})
COLUMNS = mapping(
    record({"settings": SETTINGS, "methods": mapping(SHARE, most=100)}, {"format": integer(1, FORMAT)}), most=100
)


@dataclass(frozen=True)
class Settings:
    """Hold what all runs of a column of the table share.

    >>> Settings("c10-5t-mini").column, Settings("c10-5t", memory="half").column, Settings("c10-5t", memory=50).column
    ('c10-5t-mini', 'c10-5t-half', 'c10-5t-memory-50')
    """

    protocol: str
    memory: int | str | None = None  # images, "half"; None: as the protocol says
    data: str | None = None
    partial: bool = False
    trunk: str | None = None  # None: as the protocol says
    weights: str | None = None
    device: str = "cpu"
    seed: int = 0
    threads: int = 1

    @property
    def memory_kind(self) -> str:
        """Return the memory as a column's name tells it; empty for the protocol's own memory."""
        return f"memory-{self.memory}" if isinstance(self.memory, int) else self.memory or ""

    @property
    def column(self) -> str:
        """Return the name of the column, which is also that of its directory."""
        return "-".join(filter(None, (self.protocol, self.memory_kind)))


@dataclass(frozen=True)
class Share:
    """Hold a method's share of a column: the class orders 1 … orders, and its own options."""

    orders: int
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Request:
    """Ask for methods on the class orders 1 … orders of one column; `options` are by method."""

    settings: Settings
    methods: Sequence[str]
    orders: int
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not 1 <= self.orders <= SHUFFLES:
            raise OarlockError(f"{self.orders} class orders: choose 1 to {SHUFFLES}")
        for name in (*self.methods, *self.options):
            methods.find(name)


@dataclass(frozen=True, eq=False)
class PlannedRun:
    settings: Settings
    order: int
    method: str
    options: dict[str, Any]

    @property
    def directory(self) -> Path:
        """Return the run's directory, below the grid's own."""
        return Path(self.settings.column) / f"order-{self.order}" / self.method

    def config(self) -> RunConfig:
        of = self.settings
        shared = run_settings(of.protocol, data=of.data, partial=of.partial, memory=of.memory, trunk=of.trunk)
        return RunConfig(
            **shared,
            method=self.method,
            order=self.order,
            seed=of.seed,
            weights=of.weights,
            device=of.device,
            threads=of.threads,
            options=self.options,
        )

    def __str__(self) -> str:
        return f"{self.settings.column} order {self.order} {self.method}"


@dataclass(frozen=True)
class Plan:
    """Hold columns, and the methods in each; a plan can only grow.

    >>> plan = Plan().extended(Request(Settings("c10-5t"), ["row", "row-wp", "slda"], 1))
    >>> plan = plan.extended(Request(Settings("c10-5t"), ["slda"], 2))
    >>> [str(run) for run in plan.runs()]
    ['c10-5t order 1 row', 'c10-5t order 1 slda', 'c10-5t order 2 slda']
    """

    columns: dict[str, tuple[Settings, dict[str, Share]]] = field(default_factory=dict)

    def extended(self, request: Request) -> "Plan":
        """Return a plan that has what is asked for, too; what was planned before stays."""
        settings = request.settings
        before, shares = self.columns.get(settings.column, (settings, {}))
        for name, value in asdict(settings).items():
            if (planned := getattr(before, name)) != value:
                raise OarlockError(
                    f"the runs of {settings.column} were planned with {name} = {planned!r}, not {value!r}: "
                    "go on with the same, or choose another directory"
                )
        shares = dict(shares)
        for method in request.methods:
            share = Share(request.orders, dict(request.options.get(method, {})))
            known = shares.get(method, share)
            if known.options != share.options:
                raise OarlockError(
                    f"{method} on {settings.column} was planned with the options {known.options}, "
                    f"not {share.options}: go on with the same, or choose another directory"
                )
            shares[method] = Share(max(known.orders, share.orders), share.options)
        _check_variants(shares)
        return Plan({**self.columns, settings.column: (settings, shares)})

    def runs(self) -> Iterator[PlannedRun]:
        """Yield runs by column, all methods on the first order before the second; variants share a training."""
        for settings, shares in self.columns.values():
            for order in range(1, 1 + max((share.orders for share in shares.values()), default=0)):
                for method in trainings(name for name, share in shares.items() if order <= share.orders):
                    yield PlannedRun(settings, order, method, shares[method].options)

    def only(self, column: str) -> "Plan":
        return Plan({name: planned for name, planned in self.columns.items() if name == column})

    def orders(self, column: str) -> dict[str, int]:
        """Return how many class orders are planned for each method."""
        _, shares = self.columns.get(column, (None, {}))
        return {method: share.orders for method, share in shares.items()}

    def save(self, out: Path) -> None:
        content = {
            name: {
                "format": FORMAT,
                "settings": asdict(settings),
                "methods": {method: asdict(share) for method, share in shares.items()},
            }
            for name, (settings, shares) in self.columns.items()
        }
        write_json(out / FILE, content)

    @classmethod
    def load(cls, out: Path) -> "Plan":
        """Return the plan in a directory; an empty one where there is none."""
        if not (out / FILE).exists():
            return cls()
        content = read_json(out / FILE)
        if isinstance(content, dict) and any(map(is_newer, content.values())):
            raise OarlockError(f"{out / FILE} was written by a newer Oarlock; please upgrade")
        with undamaged(out / FILE):
            columns = COLUMNS(content, "")
            return cls({name: (_settings(name, column), _shares(column)) for name, column in columns.items()})


def _check_variants(shares: Mapping[str, Share]) -> None:
    """A method that is read from another's training cannot have options of its own."""
    for method, share in shares.items():
        for variant in methods.find(method).variants.keys() & shares.keys():
            if own := {k: v for k, v in shares[variant].options.items() if share.options.get(k) != v}:
                raise OarlockError(
                    f"{variant} is read from {method}'s training, which does not have its options {own}: "
                    f"set them for {method}, or run {variant} in another directory"
                )


def _settings(name: str, column: dict[str, Any]) -> Settings:
    settings = Settings(**_known(Settings, column["settings"]))
    find(settings.protocol)
    if settings.column != name:  # which is also the name of a directory
        raise OarlockError(f"the runs of {settings.column} stand under the name {name!r}")
    return settings


def _shares(column: dict[str, Any]) -> dict[str, Share]:
    shares = {method: Share(**_known(Share, share)) for method, share in column["methods"].items()}
    if column.get("format", 1) >= NAMED:
        for method in shares:
            methods.find(method)
        return shares
    paper, upgraded = has_paper_settings(column["settings"]["protocol"]), dict[str, Share]()
    for method, share in shares.items():
        upgraded.setdefault(methods.find(upgrade_name(method, share.options, paper)).name, share)
    return upgraded


def _known(cls: type, content: dict[str, Any]) -> dict[str, Any]:
    return {f.name: content[f.name] for f in fields(cls) if f.name in content}
