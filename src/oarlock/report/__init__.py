"""What a finished run looks like: a table for the terminal and one self-contained HTML page."""

from oarlock.report.run_page import write_report
from oarlock.report.terminal import print_summary

__all__ = ["print_summary", "write_report"]
