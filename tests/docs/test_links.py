"""Links of the pages lead somewhere, and the files they name are there."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "docs/**/*.md", "benchmarks/README.md")
PAGES = sorted(page.relative_to(ROOT).as_posix() for name in NAMED for page in ROOT.glob(name))
FENCE = re.compile(r"^ *```.*?^ *```", re.DOTALL | re.MULTILINE)
LINK = re.compile(r"\]\((?![a-z]+:)([^)#\s]*)#?([^)\s]*)\)")
SPAN = re.compile(r"`((?:tests|src/oarlock|benchmarks|docs|tools|results)/[^`\s]*)[^`]*`")
NEW_FILE = re.compile(r"^`src/[\w/]+\.py`:$", re.MULTILINE)  # of a recipe: not there on purpose


def prose(page: Path) -> str:
    """Return a page without its blocks of code and the names of new files."""
    return NEW_FILE.sub("", FENCE.sub("", page.read_text(encoding="utf-8")))


def anchors(page: Path) -> Iterator[str]:
    """Yield the headings of a page as GitHub's addresses have them."""
    for heading in re.findall(r"^#+ +(.+?) *$", prose(page), re.MULTILINE):
        yield re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def broken(page: Path) -> Iterator[str]:
    """Yield links and names of files that lead nowhere."""
    for path, heading in LINK.findall(prose(page)):
        target = page.parent / path if path else page
        if not target.exists() or (heading and heading not in anchors(target)):
            yield f"{path}#{heading}" if heading else path
    for path in SPAN.findall(prose(page)):
        if not any(ROOT.glob(path.rstrip("/"))):
            yield path


@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_points_to_is_there(page: str) -> None:
    assert list(broken(ROOT / page)) == []


def test_what_is_missing_is_found(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A's `b`\n[x](page.md#as-b) [x](#c) [x](no.md) `tests/no.py -k x` `docs/*.md`\n```\n`src/oarlock/no`\n```\n"
    )
    assert list(broken(page)) == ["#c", "no.md", "tests/no.py"]
