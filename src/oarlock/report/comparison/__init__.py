"""Finished runs side by side: one page, one Markdown file, one table for the terminal."""

from oarlock.report.comparison.files import write_comparison
from oarlock.report.comparison.summary import Comparison, compare
from oarlock.report.comparison.terminal import print_comparison

__all__ = ["Comparison", "compare", "print_comparison", "write_comparison"]
