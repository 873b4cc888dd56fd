"""How tensors lie in a file: a header of JSON that says where each is, then their bytes (the safetensors format).

The header is parsed and held against the file's size before anything else is read. Tensors are read into memory of
their own, so that whatever happens to the file afterwards, what was checked is what is used.
"""

import json
import math
import os
from collections.abc import Mapping
from typing import IO, Any, NamedTuple

import torch
from torch import Tensor

# In the order in which safetensors writes them, widest last; files have the widest first.
DTYPES = {
    "BOOL": torch.bool,
    "U8": torch.uint8,
    "I8": torch.int8,
    "F8_E5M2": torch.float8_e5m2,
    "F8_E4M3": torch.float8_e4m3fn,
    "I16": torch.int16,
    "U16": torch.uint16,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I32": torch.int32,
    "U32": torch.uint32,
    "F32": torch.float32,
    "C64": torch.complex64,
    "F64": torch.float64,
    "I64": torch.int64,
    "U64": torch.uint64,
}
LARGEST_HEADER = 100_000_000  # bytes, as safetensors has it
_LENGTH = 8  # bytes that say how long the header is
_METADATA = "__metadata__"


class LayoutError(ValueError):
    """Say what is wrong with a file's layout."""


class Entry(NamedTuple):
    """Say what a tensor is, and where its bytes begin and end among those of all tensors."""

    dtype: torch.dtype
    shape: tuple[int, ...]
    begin: int
    end: int


class Header(NamedTuple):
    """Hold what is known of a file before its tensors are read: every entry lies inside the file, and together they
    cover it."""

    entries: dict[str, Entry]  # in the order of their bytes
    metadata: dict[str, str]


def read_header(file: IO[bytes]) -> Header:
    """Return the header of a file that was just opened, and leave the file where the tensors begin."""
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    length = int.from_bytes(file.read(_LENGTH), "little")
    if not 2 <= length <= min(size - _LENGTH, LARGEST_HEADER):
        raise LayoutError("its header does not fit into it")
    try:
        content = json.loads(file.read(length))
    except (ValueError, RecursionError):
        raise LayoutError("its header is not JSON") from None
    if not isinstance(content, dict):
        raise LayoutError("its header is not a JSON object")
    metadata = content.pop(_METADATA, {})
    if not isinstance(metadata, dict) or not all(isinstance(text, str) for text in metadata.values()):
        raise LayoutError("its metadata is not text")
    entries = {name: _entry(name, value) for name, value in content.items()}
    entries = dict(sorted(entries.items(), key=lambda item: item[1][2:]))
    reached = 0
    for name, entry in entries.items():
        if entry.begin != reached:
            raise LayoutError(f"the tensor {name!r} does not begin where the one before it ends")
        reached = entry.end
    if reached != size - _LENGTH - length:
        raise LayoutError("its tensors are not as long as the file")
    return Header(entries, metadata)


def _entry(name: str, value: Any) -> Entry:
    try:
        dtype, shape, (begin, end) = DTYPES[value["dtype"]], value["shape"], value["data_offsets"]
        counted = type(shape) is list and all(type(one) is int and one >= 0 for one in (*shape, begin, end))
        fits = counted and math.prod(shape) * dtype.itemsize == end - begin
    except (KeyError, TypeError, ValueError):
        fits = False
    if not fits:
        raise LayoutError(f"the tensor {name!r} is not described as one")
    return Entry(dtype, tuple(shape), begin, end)


def read_data(file: IO[bytes], header: Header) -> dict[str, Tensor]:
    """Return the tensors of a file whose header was just read."""
    tensors = {}
    for name, entry in header.entries.items():
        try:
            content = torch.empty(entry.end - entry.begin, dtype=torch.uint8)
        except RuntimeError:  # torch's own words are about its allocator
            raise LayoutError(f"the tensor {name!r} does not fit into memory") from None
        if file.readinto(content.numpy()) != len(content):  # type: ignore[attr-defined]
            raise LayoutError("it became shorter while it was read")
        tensors[name] = content.view(entry.dtype).view(entry.shape)
    return tensors


def write_data(file: IO[bytes], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors on the CPU, each with its bytes in a row, byte for byte as safetensors does."""
    names, widths = {dtype: name for name, dtype in DTYPES.items()}, list(DTYPES.values())
    content: dict[str, Any] = {_METADATA: dict(metadata)}
    ordered = sorted(tensors.items(), key=lambda item: (-widths.index(item[1].dtype), item[0].encode()))
    end = 0
    for name, tensor in ordered:
        begin, end = end, end + tensor.nbytes
        content[name] = {"dtype": names[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
    header = json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % _LENGTH)
    file.write(len(header).to_bytes(_LENGTH, "little"))
    file.write(header)
    for _, tensor in ordered:
        file.write(plain_bytes(tensor))


def plain_bytes(tensor: Tensor) -> memoryview:
    """Return the bytes of a tensor on the CPU whose bytes are in a row, without a copy."""
    return tensor.reshape(-1).view(torch.uint8).numpy().data if tensor.numel() else memoryview(b"")
