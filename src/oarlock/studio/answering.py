"""JSON that any name passes through: folders may be called by bytes that are no text."""

import json
from typing import Any

from starlette.responses import JSONResponse


class Json(JSONResponse):
    """Answer in ASCII, and never with a number that JSON has not."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")
