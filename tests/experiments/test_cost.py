"""What a grid will cost: prices by hand, and a probe on the tiny trunk that learns as a run does."""

import json

import pytest

from conftest import Command
from oarlock.experiments import cost
from oarlock.experiments.cost import Cost, Prices
from oarlock.experiments.plan import PlannedRun, Settings
from oarlock.nets.trunks import Trunk


def planned(method: str, protocol: str = "c10-5t-mini", **options: object) -> PlannedRun:
    return PlannedRun(Settings(protocol), 1, method, dict(options))


def test_a_run_is_its_images_at_their_prices() -> None:
    """5000 images, of which 4 epochs are learned, and 2000 that are asked: under five tasks, or again after each."""
    prices = Prices(image=1.0, epoch=10.0, answer=100.0, bare=0.5)
    assert Cost.of(planned("row", epochs=3), prices).seconds == 5000 * (1 + 3 * 10) + 2000 * (0.5 + 5 * 100)
    assert Cost.of(planned("finetune", epochs=3), prices).seconds == 5000 * 31 + 2000 * (0.5 + 3 * 100)
    assert Cost.of(planned("slda"), prices) == (5000 * 1 + 2000 * 100.5, 10000 + 402000)


def test_prices_are_measured_on_what_a_run_does(tiny_trunk: Trunk) -> None:
    prices = cost.measure(planned("row"), tiny_trunk)
    assert all(price > 0 for price in prices)
    assert cost.measure(planned("slda"), tiny_trunk).epoch == 0


def test_tasks_of_many_images_are_not_measured_as_tasks_of_few(tiny_trunk: Trunk) -> None:
    _, learner = cost._probe(planned("oar"), tiny_trunk, epochs=1)
    assert learner.method.closed == [False] * 3
    _, learner = cost._probe(planned("oar", few=500), tiny_trunk, epochs=1)
    assert learner.method.closed == [True] * 3


def test_a_large_trunk_is_measured_without_its_weights(random_weights: None) -> None:
    trunk = cost.untrained("test_vit")
    assert trunk.card.source == "none" and trunk.card.family == "vit"
    assert cost.untrained("vit_pico").card.source != "none"


def test_the_command_prints_every_run(
    tiny_trunk: Trunk, monkeypatch: pytest.MonkeyPatch, oarlock: Command, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost, "untrained", lambda name: tiny_trunk)
    asked = ("plan", "--protocol", "c10-5t-mini,c100-10t-mini", "--methods", "slda,finetune", "--orders", 2)
    assert oarlock(*asked, "--json") == 0
    printed = capsys.readouterr()
    lines = [json.loads(line) for line in printed.out.splitlines()]
    assert [(line["protocol"], line["order"], line["method"]) for line in lines][:3] == [
        ("c10-5t-mini", 1, "slda"),
        ("c10-5t-mini", 1, "finetune"),
        ("c10-5t-mini", 2, "slda"),
    ]
    assert len(lines) == 8 and all(line["seconds"] > 0 < line["passes"] for line in lines)
    assert printed.err.count("measuring slda") == 1  # on two protocols of the same trunk
    assert oarlock(*asked, "--machines", 4) == 0
    assert "8 runs" in (text := capsys.readouterr().out) and "h on 4 like it" in text
    assert oarlock(*asked, "--machines", 0) == 2
