"""Files of answers: JSON lines and Parquet, in parts and whole. A row is what `predict --json` prints, or a path and
what is wrong with the file."""

import io
import json
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from itertools import chain
from pathlib import PurePosixPath
from typing import IO, Any, NamedTuple

from oarlock.errors import OarlockError
from oarlock.printing import json_line

Rows = Sequence[Mapping[str, Any]]


class Counted(NamedTuple):
    """Hold how many images there are in a file, and how many of them could not be read."""

    images: int
    unreadable: int


class Fields(NamedTuple):
    """Tell what rows have besides what all have."""

    numbered: bool  # labels are numbers and no names
    top: bool  # there are the likeliest classes


class Format(ABC):
    """Write rows, and put what was written together."""

    @abstractmethod
    def write(self, rows: Rows, fields: Fields, file: IO[bytes]) -> None:
        """Write one part."""

    @abstractmethod
    def merge(self, parts: Iterable[bytes], file: IO[bytes]) -> Counted:
        """Write the rows of all parts."""


class JsonLines(Format):
    """Hold an object on every line; of an unreadable image only its path and the error."""

    def write(self, rows: Rows, fields: Fields, file: IO[bytes]) -> None:
        for row in rows:
            file.write(json_line(row).encode())

    def merge(self, parts: Iterable[bytes], file: IO[bytes]) -> Counted:
        images = unreadable = 0
        for part in parts:
            file.write(part)
            rows = [json.loads(line) for line in part.splitlines()]
            images += len(rows)
            unreadable += sum("error" in row for row in rows)
        return Counted(images, unreadable)


class Parquet(Format):
    """Hold a column for every field and one for errors; a part is a row group."""

    def write(self, rows: Rows, fields: Fields, file: IO[bytes]) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        label = pa.int64() if fields.numbered else pa.string()
        best = pa.list_(pa.struct([("label", label), ("probability", pa.float64())]))
        columns = {"path": pa.string(), "label": label, "unknown": pa.bool_(), "probability": pa.float64()}
        columns |= {"task": pa.int64(), "score": pa.float64()}
        columns |= {"top": best} if fields.top else {}
        columns["error"] = pa.string()
        parquet.write_table(pa.Table.from_pylist(_utf8(rows), pa.schema(list(columns.items()))), file)

    def merge(self, parts: Iterable[bytes], file: IO[bytes]) -> Counted:
        from pyarrow import parquet

        tables = (parquet.read_table(io.BytesIO(part)) for part in parts)
        first = next(tables)
        images = unreadable = 0
        with parquet.ParquetWriter(file, first.schema) as writer:
            for table in chain([first], tables):
                writer.write_table(table)
                images += table.num_rows
                unreadable += table.num_rows - table["error"].null_count
        return Counted(images, unreadable)


def _utf8(content: Any) -> Any:
    """The same, with replacement characters where a file's name is not UTF-8."""
    if isinstance(content, str):
        return content.encode(errors="surrogateescape").decode(errors="replace")
    if isinstance(content, Mapping):
        return {name: _utf8(value) for name, value in content.items()}
    return [_utf8(value) for value in content] if isinstance(content, list) else content


FORMATS = {".jsonl": JsonLines(), ".parquet": Parquet()}


def format_of(out: str) -> Format:
    """Return the format that a file's name asks for."""
    suffix = PurePosixPath(out).suffix
    if suffix not in FORMATS:
        raise OarlockError(f"--out {out}: choose a name that ends in {' or '.join(FORMATS)}")
    if suffix == ".parquet" and find_spec("pyarrow") is None:
        raise OarlockError("pyarrow is not installed, which Parquet needs: pip install 'oarlock[ray]'")
    return FORMATS[suffix]
