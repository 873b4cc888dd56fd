"""Several methods on the same stream: one run after the other, each in a directory of its own."""

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

from oarlock.errors import OarlockError
from oarlock.experiments.config import CONFIG, RunConfig, saved_config
from oarlock.experiments.protocols import has_paper_settings
from oarlock.experiments.run import Display, check_memory, check_unused, run
from oarlock.files import make_directory, read_json, write_json
from oarlock.methods import configure, methods
from oarlock.schema import integer, list_of, record, text, undamaged
from oarlock.upgrades import FORMAT, NAMED, is_newer, upgrade_runs

ALL = "all"
_FILE = "runs.json"


RUNS = record(
    {"methods": list_of(text(100), least=1, most=100), "settings": CONFIG},
    {"format": integer(1, FORMAT)},
)

WriteReport = Callable[[Path], object]  # writes `report.html` into the directory of a finished run


class SeveralDisplay(Display, Protocol):
    """Show how the runs go."""

    def on_method(self, name: str, number: int, count: int) -> None: ...


def is_several(method: str) -> bool:
    """Return whether a method given on the command line stands for a list of them."""
    return method == ALL or "," in method


def expand(config: RunConfig) -> list[RunConfig]:
    """Return one configuration for every method of a list such as "row,slda,hat", or for all there are.

    >>> [config.method for config in expand(RunConfig("sample", method="row,slda,row"))]
    ['row', 'slda']
    """
    return [replace(config, method=name) for name in trainings(named(config.method))]


def named(text: str) -> list[str]:
    """Return the methods in a list such as "row, slda", or all there are."""
    names = sorted(methods.all()) if text == ALL else [name.strip() for name in text.split(",")]
    return list(dict.fromkeys(names))


def holds_several(out: Path) -> bool:
    return (out / _FILE).exists()


def saved_configs(out: Path) -> list[RunConfig]:
    """Return the configurations of runs that were started together."""
    content = read_json(out / _FILE)
    if is_newer(content):
        raise OarlockError(f"{out / _FILE} was written by a newer Oarlock; please upgrade")
    with undamaged(out / _FILE):
        found = RUNS(content, "")
        written = found.get("format", 1)
        if written < NAMED:
            found = upgrade_runs(found, has_paper_settings(found["settings"].get("protocol")))
        settings = {"format": max(written, NAMED), **found["settings"]}
        return [RunConfig.from_json({**settings, "method": methods.find(name).name}) for name in found["methods"]]


def run_several(
    configs: Sequence[RunConfig], out: Path, *, resume: bool = False, display: SeveralDisplay, report: WriteReport
) -> list[Path]:
    """Do the runs, or what is left of them, in `out/<method>`, with a report of each; return these directories."""
    configs = _with_earlier(configs, out, resume)
    rename_runs(out)
    directories = [out / config.method for config in configs]
    check([config for config, place in zip(configs, directories, strict=True) if not _finished(place)])
    make_directory(out)
    names = [config.method for config in configs]
    write_json(out / _FILE, {"format": FORMAT, "methods": names, "settings": _settings(configs[0])})
    for number, (config, directory) in enumerate(zip(configs, directories, strict=True), 1):
        display.on_method(config.method, number, len(configs))
        run(config, directory, resume=True, display=display)
        write_missing(report, directory)
    return directories


def rename_runs(directory: Path) -> None:
    """Call the directories of runs that an earlier version began as their methods are called today."""
    for name, today in (("row", "oar"), ("row-paper", "row")):
        begun, wanted = directory / name, directory / today
        if (begun / "config.json").exists() and saved_config(begun).method == today and not wanted.exists():
            begun.rename(wanted)


def write_missing(report: WriteReport, directory: Path) -> None:
    """Write a finished run's report, unless it has one."""
    if not (directory / "report.html").exists():
        report(directory)


def trainings(names: Iterable[str]) -> list[str]:
    """Return the methods to train: not those that are another variant of the scores of one trained anyway."""
    kept = list(dict.fromkeys(names))
    for name in list(kept):
        if any(name in methods.find(other).variants for other in kept if other != name):
            kept.remove(name)
    return kept


def _with_earlier(configs: Sequence[RunConfig], out: Path, resume: bool) -> list[RunConfig]:
    """Together with the methods that were started in `out` before."""
    if not holds_several(out):
        check_unused(out)
        return list(configs)
    if not resume:
        raise OarlockError(f"{out} holds runs: choose another directory, or continue them with --resume")
    earlier = saved_configs(out)
    before = _settings(earlier[0])
    for name, value in _settings(configs[0]).items():
        if before[name] != value:
            raise OarlockError(
                f"the runs in {out} have {name} = {before[name]!r}, not {value!r}: "
                "resume them with the settings they were started with, or choose another directory"
            )
    names = trainings(config.method for config in (*earlier, *configs))
    return [replace(configs[0], method=name) for name in names]


def check(configs: Sequence[RunConfig]) -> None:
    """Find a mistake in any of the configurations before the first run."""
    if not configs:
        return
    for config in configs:
        configure(methods.find(config.method), config.all_options())
    stream = configs[0].stream()
    for config in configs:
        check_memory(config.learner(), stream)


def _finished(directory: Path) -> bool:
    return (directory / "result.json").exists()


def _settings(config: RunConfig) -> dict[str, Any]:
    """What the runs have in common, as JSON gives it back."""
    content = json.loads(json.dumps(asdict(config)))
    return {name: value for name, value in content.items() if name != "method"}
