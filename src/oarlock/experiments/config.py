"""All that decides a run's outcome: `config.json`, written and read here alone."""

import json
import os
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from oarlock.data.sources import open_source
from oarlock.data.streams import Stream
from oarlock.errors import OarlockError
from oarlock.experiments import protocols
from oarlock.files import read_json
from oarlock.learner import Learner
from oarlock.methods import configure, methods
from oarlock.nets.trunks import BUNDLED
from oarlock.options import describe
from oarlock.schema import boolean, either, integer, list_of, mapping, maybe, number, record, text, undamaged
from oarlock.upgrades import FORMAT, is_newer, upgrade_run_config

MOST_THREADS = 1024
PATH = text(4096)
CONFIG = record(
    {"source": PATH},
    {
        "format": integer(1, FORMAT),
        "method": PATH,  # or several
        "increment": either(integer(), list_of(integer())),
        "order": either(integer(), list_of(text())),
        "validation": number(0, 1),
        "seed": integer(),
        "memory": integer(),
        "calibration": number(0, 1),
        "trunk": text(200),
        "weights": maybe(PATH),
        "size": maybe(integer()),
        "device": text(100),
        "threads": integer(1, MOST_THREADS),
        "options": mapping(maybe(either(boolean, text(200), number())), most=200),
        "protocol": maybe(text(100)),
        "partial": boolean,
        "test": maybe(PATH),
        "unknown": maybe(PATH),
    },
)


@dataclass(frozen=True)
class RunConfig:
    """Hold the content of `config.json`."""

    source: str
    method: str = "oar"
    increment: int | list[int] = 2
    order: int | list[str] = 0
    validation: float = 0.0  # share of training images tested on, in place of the test images
    seed: int = 0
    memory: int = 200
    calibration: float = 0.1
    trunk: str = BUNDLED
    weights: str | None = None
    size: int | None = None  # of the images that the trunk sees; None: as suits the first task's
    device: str = "cpu"
    threads: int = field(default_factory=lambda: os.cpu_count() or 1)
    options: dict[str, Any] = field(default_factory=dict)  # on top of the protocol's
    protocol: str | None = None
    partial: bool = False  # accept fewer images than the protocol asks for
    test: str | None = None  # a folder to test on, where the source is a folder to train on
    unknown: str | None = None  # one with images of no learned class

    def __post_init__(self) -> None:
        if not 1 <= self.threads <= MOST_THREADS:
            raise OarlockError(f"threads = {self.threads}: a run needs at least one, and no more than {MOST_THREADS}")
        if self.protocol is not None:
            protocols.find(self.protocol).check(self.increment, self.order)

    @classmethod
    def on_stream(cls, stream: Stream, **settings: Any) -> "RunConfig":
        """Return settings for a stream that is at hand, not opened by its name: `run` has to be given it as well."""
        return cls(f"the stream {stream.name!r}", increment=[len(task.classes) for task in stream], **settings)

    def learner(self) -> Learner:
        configure(methods.find(self.method), self.all_options())  # no option has a name of those below
        return Learner(
            self.method,
            trunk=self.trunk,
            weights=self.weights,
            size=self.size,
            memory=self.memory,
            calibration=self.calibration,
            seed=self.seed,
            device=self.device,
            **self.all_options(),
        )

    def all_options(self) -> dict[str, Any]:
        if self.protocol is None:
            return self.options
        return protocols.find(self.protocol).options(self.method) | self.options

    def source_name(self) -> str:
        """Return where the images are from; of a protocol without this machine's folders, so that results can be
        shared."""
        if self.protocol is None:
            return self.source
        name, file = protocols.find(self.protocol).data.name, Path(self.source).name
        return name if file == name else f"{name} ({file})"

    def stream(self) -> Stream:
        if self.protocol is None:
            source = open_source(self.source, self.test, self.unknown)
        else:
            source = protocols.find(self.protocol).source(self.source, self.partial)
        return Stream.from_source(source, self.increment, self.order, self.validation)

    @classmethod
    def from_json(cls, content: Any) -> "RunConfig":
        """Return the settings in what was read as JSON, of this version or an earlier one; refuse anything else."""
        content = CONFIG(upgrade_run_config(CONFIG(content, "")), "")
        return cls(**{f.name: content[f.name] for f in fields(cls) if f.name in content})


def saved_config(out: Path) -> RunConfig:
    """Return the settings of a run that was started."""
    if not (out / "config.json").exists():
        raise OarlockError(f"there is no run in {out}")
    content = read_json(out / "config.json")
    if is_newer(content):
        raise OarlockError(f"{out / 'config.json'} was written by a newer Oarlock; please upgrade")
    with undamaged(out / "config.json"):
        return RunConfig.from_json(content)


def full_config(config: RunConfig) -> dict[str, Any]:
    """Return the settings with every option of the method, so that a later version's defaults cannot creep in."""
    resolved = configure(methods.find(config.method), config.all_options())
    return {"format": FORMAT, **asdict(config), "options": describe(resolved)}


def check_same(config: RunConfig, out: Path) -> None:
    before, now = full_config(saved_config(out)), full_config(config)
    for name, value in now.items():
        if before.get(name) != json.loads(json.dumps(value)):
            raise OarlockError(
                f"the run in {out} has {name} = {before.get(name)!r}, not {value!r}: "
                "resume it with the settings it was started with, or choose another directory"
            )
