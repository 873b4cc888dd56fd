"""The site: built without a warning, whole, and asking nobody else for anything."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

ROOT = Path(__file__).parents[2]
FETCHED = {("script", "src"), ("img", "src"), ("link", "href"), ("iframe", "src"), ("source", "srcset")}


class Found(HTMLParser):
    """What a page links to, what a browser fetches for it, its anchors, and its text outside of code."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.fetched: set[str] = set()
        self.anchors: set[str] = set()
        self.text: list[str] = []
        self.inside: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.inside.append(tag)
        for name, value in attributes:
            if name == "id":
                self.anchors.add(value or "")
            elif (tag, name) in FETCHED:
                self.fetched.add(value or "")
            elif name == "href":
                self.links.add(value or "")

    def handle_endtag(self, tag: str) -> None:
        while self.inside and self.inside.pop() != tag:
            pass

    def handle_data(self, data: str) -> None:
        if not {"pre", "code", "script", "style"} & set(self.inside):
            self.text.append(data)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
    return out


@pytest.fixture(scope="module")
def pages(site: Path) -> dict[Path, Found]:
    return {page: Found(page.read_text(encoding="utf-8")) for page in site.rglob("*.html") if page.name != "404.html"}


def broken(page: Path, found: Found, pages: dict[Path, Found]) -> Iterator[str]:
    for link in found.links | found.fetched:
        parts = urlsplit(link)
        if parts.scheme:
            continue
        target = (page.parent / unquote(parts.path)).resolve() if parts.path else page
        target = target / "index.html" if target.is_dir() else target
        anchor = unquote(parts.fragment)
        if not target.exists() or (anchor and target in pages and anchor not in pages[target].anchors):
            yield link


def test_every_link_leads_somewhere(pages: dict[Path, Found]) -> None:
    assert {page: missing for page, found in pages.items() if (missing := list(broken(page, found, pages)))} == {}


def test_what_lies_beside_the_pages_is_there(site: Path) -> None:
    row = (site / "row" / "index.html").read_text(encoding="utf-8")
    assert 'href="../files/src/oarlock/methods/row.py/"' in row
    shown = (site / "files/src/oarlock/methods/row.py/index.html").read_text(encoding="utf-8")
    assert "Row" in shown and "highlight" in shown
    assert (site / "files/results/search/c10-5t-mini/oar.json").stat().st_size > 100
    assert "Recipes" in (site / "contributing" / "index.html").read_text(encoding="utf-8")


def test_nothing_is_fetched_from_elsewhere(site: Path, pages: dict[Path, Found]) -> None:
    assert {link for found in pages.values() for link in found.fetched if urlsplit(link).netloc} == set()
    for style in site.rglob("*.css"):
        assert re.findall(r"(?:url\(|@import)\s*[\"']?(?:https?:)?//", style.read_text(encoding="utf-8")) == []


def test_no_page_points_to_a_place_to_edit_it(pages: dict[Path, Found]) -> None:
    assert not any('rel="edit"' in page.read_text(encoding="utf-8") for page in pages)


def test_lists_and_tables_are_what_they_look_like_in_the_source(pages: dict[Path, Found]) -> None:
    for page, found in pages.items():
        assert not [line for text in found.text for line in text.splitlines() if re.match(r"(- \w|\|.*\|)", line)], (
            page
        )


def test_the_reference_has_the_learner_with_its_examples_as_code(pages: dict[Path, Found], site: Path) -> None:
    found = pages[site / "reference/learner/index.html"]
    assert {"oarlock.learner.Learner.learn", "oarlock.learner.load"} <= found.anchors
    assert not [text for text in found.text if ">>>" in text]
