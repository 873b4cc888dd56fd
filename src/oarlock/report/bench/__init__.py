"""What a grid of runs measured: tables beside the paper's, and figures."""

from oarlock.report.bench.columns import Column, find_columns
from oarlock.report.bench.figures import write_figures
from oarlock.report.bench.formats import FORMATS, render
from oarlock.report.bench.tables import MEASURE_NAMES, Table, tabulate

__all__ = ["FORMATS", "MEASURE_NAMES", "Column", "Table", "find_columns", "render", "tabulate", "write_figures"]
