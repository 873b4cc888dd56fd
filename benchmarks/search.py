"""Hyper-parameters per method, chosen on validation images: the same number of trials for every method.

    python benchmarks/search.py --protocol c10-5t-mini [--data PATH] [--methods row,slda] [--out results/search]
    python benchmarks/search.py --protocol c10-5t-lite --methods oar --option beta=0.4,0.2

A fifth of every class's training images is taken out of training and tested on; test images are never looked at.
Each trial is one run (class order 1, seed 0, one thread) with the method's own defaults and what the trial sets,
whatever options the protocol has for the method. Methods that train are tried at a third of, at and at three
times their learning rate; those that do not, with three values of the option that they are most sensitive to;
`--option` tries values of another option instead. One JSON file per method and protocol is written as trials end,
best trial first; trials already in it are not repeated. What is adopted goes into the `settings` of the method, by
hand.
"""

import argparse
import tempfile
from pathlib import Path
from typing import Any

from oarlock.errors import OarlockError
from oarlock.experiments import protocols
from oarlock.experiments.config import RunConfig
from oarlock.experiments.run import run
from oarlock.files import make_directory, read_json, write_json
from oarlock.methods import configure, methods

VALIDATION = 0.2
UNTRAINED: dict[str, list[dict[str, Any]]] = {
    "slda": [{"shrinkage": value} for value in (1e-3, 1e-2, 1e-1)],
    "ncm": [{"cosine": value} for value in (True, False)],
    "fecam": [{"alpha": value} for value in (1.0, 0.1, 10.0)],
    "ranpac": [{"lamb": value} for value in (None, 1e2, 1e4)],
    "klda": [{"epsilon": value} for value in (None, 1e-4, 1e-2)],
    "anacp": [{"lamb": value} for value in (100.0, 10.0, 1000.0)],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--protocol", required=True)
    parser.add_argument("--data")
    parser.add_argument("--methods", help="a comma list; all that are trained by themselves if not given")
    parser.add_argument("--option", type=values, help="what to try in place of learning rates: name=value,value")
    parser.add_argument("--out", type=Path, default=Path("results/search"))
    given = parser.parse_args()
    variants = {name for cls in methods.all().values() for name in cls.variants}
    names = given.methods.split(",") if given.methods else sorted(methods.all().keys() - variants)
    try:
        settings = protocols.run_settings(given.protocol, data=given.data)
    except OarlockError as problem:
        parser.error(str(problem))
    make_directory(given.out / given.protocol)
    for name in names:
        search(name, settings, given.out / given.protocol / f"{name}.json", given.option or trials(name))


def search(name: str, settings: dict[str, Any], file: Path, wanted: list[dict[str, Any]]) -> None:
    done = read_json(file) if file.exists() else []
    for options in wanted:
        if any(trial["options"] == options for trial in done):
            continue
        whole = defaults(name, settings["protocol"]) | options
        config = RunConfig(**settings, method=name, order=1, validation=VALIDATION, threads=1, options=whole)
        done.append({"options": options, **outcome(config)})
        done.sort(key=lambda trial: -trial.get("aca", 0.0))
        write_json(file, done)
        print(name, done[-1] if len(done) == 1 else {"best": done[0], "trials": len(done)}, flush=True)


def defaults(name: str, protocol: str) -> dict[str, Any]:
    """A method's own, of all options that the protocol has: what was adopted after a trial must not change it.

    >>> defaults("row", "c10-5t-lite")
    {'beta': 0.8}
    """
    config = configure(methods.find(name), {})
    return {option: getattr(config, option) for option in protocols.find(protocol).options(name)}


def outcome(config: RunConfig) -> dict[str, Any]:
    """Of a trial; one that diverges is a trial too."""
    with tempfile.TemporaryDirectory() as out:
        try:
            result = run(config, Path(out))
        except OarlockError as problem:
            if "diverged" not in str(problem):
                raise
            return {"error": str(problem)}
    return {"aca": round(result.aca, 2), "seconds": round(sum(result.seconds.values()), 1)}


def values(text: str) -> list[dict[str, Any]]:
    """
    >>> values("beta=0.4,0.2")
    [{'beta': 0.4}, {'beta': 0.2}]
    """
    name, _, listed = text.partition("=")
    return [{name: float(value)} for value in listed.split(",")]


def trials(name: str) -> list[dict[str, Any]]:
    """Three settings of a method; the first is its default where it has a learning rate."""
    config = configure(methods.find(name), {})
    if name in UNTRAINED:
        return UNTRAINED[name]
    return [{"lr": round(config.lr * factor, 6)} for factor in (1, 1 / 3, 3)]


if __name__ == "__main__":
    main()
