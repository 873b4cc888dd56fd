"""Headings of the tables and how to read them, the same on the page and in Markdown."""

from typing import NamedTuple


class Caption(NamedTuple):
    heading: str
    how_to_read: str


FINAL = Caption(
    "After the last task",
    "Mean ± standard deviation over a method's runs; a single run has no ±. The best of a column is bold; of "
    "forgetting, the least. Time is that of training and evaluation together.",
)
AFTER_EACH_TASK = Caption("Accuracy after each task", "Mean over the tasks seen so far (ACA), in percent.")
BY_TASK = Caption(
    "Accuracy on every task, after the last task",
    "Tasks are numbered as they were learned, in percent. Under another class order a task has other classes.",
)
