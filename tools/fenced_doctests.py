"""An extension of the API reference: examples in docstrings are shown as code, not as quotations."""

import re
from typing import Any

import griffe

DOCTEST = re.compile(r"^>>> .*\n?(?:.+\n?)*", re.MULTILINE)


class FencedDoctests(griffe.Extension):
    """Put fences around the examples of every docstring."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = DOCTEST.sub(
                lambda found: f"```pycon\n{found[0].rstrip()}\n```\n", obj.docstring.value
            )
