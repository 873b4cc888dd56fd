"""Where a comparison is written."""

from pathlib import Path

from oarlock.files import make_directory, write_text
from oarlock.report.comparison.markdown import markdown
from oarlock.report.comparison.page import page
from oarlock.report.comparison.summary import Comparison


def write_comparison(comparison: Comparison, out: Path) -> Path:
    """Write `compare.md` and `compare.html`; the path of the page."""
    make_directory(out)
    write_text(out / "compare.md", markdown(comparison))
    write_text(out / "compare.html", page(comparison))
    return out / "compare.html"
