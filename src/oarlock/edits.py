"""What was corrected in a model since it learned: notes for its history."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from oarlock.data.images import Label
from oarlock.schema import integer, list_of, matching, maybe, one_of, record
from oarlock.tasks import DATE, LABEL, MOST_TASKS

MOST_EDITS = 10_000
EDIT = record(
    {
        "edit": one_of("rename", "merge", "more", "forget"),
        "labels": list_of(LABEL),
        "tasks": integer(0, MOST_TASKS),
        "when": maybe(DATE),
        "photos": maybe(matching("[0-9a-f]{64}")),
    },
    others=False,
)


class Edit(NamedTuple):
    """Hold a note of one correction. Of what was forgotten there is no name in it.

    >>> Edit("rename", ["aple", "apple"], tasks=2).describe()
    {'edit': 'rename', 'labels': ['aple', 'apple'], 'tasks': 2, 'when': None, 'photos': None}
    """

    edit: str
    labels: list[Label]  # the old name and the new; the one that stayed and the other; those with more photos
    tasks: int  # that the model knew then; the newest had the photos
    when: str | None = None  # date and time
    photos: str | None = None  # sha256 of all photos of a task that had more of a known class

    def describe(self) -> dict[str, Any]:
        return self._asdict()

    @classmethod
    def from_state(cls, description: dict[str, Any]) -> "Edit":
        return cls(**description)


def as_date(when: datetime | None) -> str | None:
    """Return date and time as files have them."""
    return None if when is None else when.astimezone(UTC).isoformat(timespec="seconds")


def without_name(edits: Sequence[Edit], name: Label) -> list[Edit]:
    """Return the notes that do not name a class, by the name it has now or by one that it had.

    >>> notes = [Edit("rename", ["a", "b"], 1), Edit("rename", ["x", "a"], 1), Edit("merge", ["c", "b"], 2)]
    >>> [note.labels for note in without_name(notes, "c")]
    [['x', 'a']]
    """
    names, kept = {name}, list[Edit]()
    for edit in reversed(edits):
        if names.isdisjoint(edit.labels):
            kept.append(edit)
        elif edit.edit != "more":  # of one lesson there may be photos of several classes
            names.update(edit.labels)
    return kept[::-1]
