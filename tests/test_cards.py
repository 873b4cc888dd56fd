"""What notebooks show of objects: a card each, in which no name is HTML; and bars that move there."""

import io
from html.parser import HTMLParser
from pathlib import Path

from conftest import make_task
from oarlock import Learner, ProgressBar
from oarlock.data.sources import open_source
from oarlock.data.streams import Stream
from oarlock.experiments.result import RunResult
from oarlock.markup import card, table
from oarlock.nets.trunks import Trunk
from oarlock.printing import SafeConsole
from oarlock.report.comparison import compare
from oarlock.training import Loss

RUNS = Path(__file__).parents[1] / "results" / "sample" / "order-1"
EVIL = "<script>alert('a')</script>\x1b"


class Balanced(HTMLParser):
    """Text of HTML, whose tags must all be closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.text, self.open, self.tags = "", [], set()
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attributes: object) -> None:
        self.open.append(tag)
        self.tags.add(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def shown(thing: object) -> str:
    html = thing._repr_html_()
    assert html.isprintable()
    return Balanced(html).text


def test_a_learner_before_and_after_it_learned(tiny_trunk: Trunk) -> None:
    learner = Learner("oar", trunk=tiny_trunk, memory=6, epochs=1, few=0)
    assert "oar on tiny" in shown(learner) and "classes: 0" in shown(learner)
    learner.learn(*make_task(["ant", "bee"])).learn(*make_task(["crow"]))
    text = shown(learner)
    assert "classes: 3 · tasks: 2 · memory: 6 of 6 images · free capacity: " in text
    assert "ant, bee" in text and "crow" in text


def test_without_memory_and_gates_nothing_is_said_of_them(tiny_trunk: Trunk) -> None:
    text = shown(Learner("slda", trunk=tiny_trunk).learn(*make_task(["ant"])))
    assert "memory" not in text and "capacity" not in text


def test_no_name_is_html(tiny_trunk: Trunk) -> None:
    images, labels = make_task(["a", "b"])
    learner = Learner("slda", trunk=tiny_trunk).learn(images, [EVIL + name for name in labels])
    assert "<script" not in learner._repr_html_() and "\x1b" not in learner._repr_html_()
    assert "<script>alert('a')</script>�a" in shown(learner)
    found = Balanced(card(EVIL, {"fact": EVIL}, table([(EVIL, EVIL)])))
    assert "script" not in found.tags and found.text.count("alert") == 4


def test_a_stream() -> None:
    text = shown(Stream.from_source(open_source("sample"), increment=5, order=1))
    assert "order: 1 · tasks: 2 · classes: 10" in text and "1000" in text and "automobile" in text


def test_a_result_and_a_comparison() -> None:
    result = RunResult.read(RUNS / "oar")
    text = shown(result)
    assert (
        f"ACA, %: {result.aca:.1f} · forgetting: {result.forgetting:.1f} · " in text
        and "oar on sample, trunk vit_pico" in text
    )
    assert f"classes: 10 · tasks: 5 · seconds: {result.seconds['train']} · free capacity: " in text
    compared = shown(compare([RUNS / "oar", RUNS / "slda"]))
    assert f"{result.aca:.1f}" in compared
    assert "forgetting, points" in compared and "runs: 2" in compared and "row" in compared


class AtEveryStep(ProgressBar):
    """Draws at every step, where the real one draws ten times a second."""

    def on_step(self, epoch: int, fraction: float, loss: Loss) -> None:
        super().on_step(epoch, fraction, loss)
        self.bar.refresh()


def test_a_bar_moves_while_a_learner_learns(tiny_trunk: Trunk) -> None:
    learner, file = Learner("row", trunk=tiny_trunk, memory=4, epochs=2), io.StringIO()
    with AtEveryStep(SafeConsole(file=file, force_terminal=True, width=100)) as bar:
        learner.learn(*make_task(["ant", "bee"]), callback=bar)
    printed = file.getvalue()
    assert "task 1 · features" in printed and "epoch 2/2 · loss" in printed and "left" in printed


def test_a_bar_is_shown_in_terminals_and_notebooks_only() -> None:
    bars = {
        name: ProgressBar(SafeConsole(file=io.StringIO(), **{name: True})) for name in ("force_jupyter", "stderr")
    }
    assert not bars["force_jupyter"].bar.disable and bars["stderr"].bar.disable
