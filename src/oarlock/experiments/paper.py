"""The paper's numbers, by measure, protocol and method; what it does not print is None."""

import json
from collections.abc import Iterable
from functools import cache
from importlib.resources import files
from typing import Any

from oarlock.experiments.metrics import Spread

FROM_TPL = ("tpl", "joint")  # the paper has neither; these are the numbers of TPL's paper
MILLION = 1e6


def paper_number(measure: str, protocol: str, method: str, *, half_memory: bool = False) -> Spread | None:
    """Return the paper's number; None where it prints none.

    >>> paper_number("aca", "c10-5t", "row")
    Spread(mean=90.97, std=0.19)
    >>> paper_number("aca", "c10-5t", "row", half_memory=True)
    Spread(mean=89.7, std=1.54)
    >>> paper_number("forgetting", "c100-10t", "icarl") is None
    True
    """
    printed = _printed()
    tables = {"aca": "half memory" if half_memory else "accuracy"}
    if not half_memory:
        tables |= {"forgetting": "forgetting", "entries": "entries"}
    if measure not in tables or protocol not in printed["protocols"]:
        return None
    numbers = printed[tables[measure]].get(method)
    number = None if numbers is None else numbers[printed["protocols"].index(protocol)]
    if number is None:
        return None
    if measure == "entries":
        return Spread(number * MILLION, None)
    return Spread(*number) if isinstance(number, list) else Spread(number, None)


def in_paper_order(methods: Iterable[str]) -> list[str]:
    """Return the methods sorted: the paper's as it lists them, then those it is framed by, then all others.

    >>> in_paper_order({"row", "finetune", "slda", "tpl"})
    ['slda', 'row', 'tpl', 'finetune']
    """
    places = {name: place for place, name in enumerate(_printed()["accuracy"])}
    return sorted(methods, key=lambda name: (places.get(name, len(places)), name))


@cache
def _printed() -> dict[str, Any]:
    content: dict[str, Any] = json.loads((files("oarlock.experiments") / "paper.json").read_text(encoding="utf-8"))
    return content
