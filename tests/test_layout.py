"""What is read from a file's header before anything else is, and what is refused by it."""

import io
import json
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from oarlock import layout
from oarlock.layout import DTYPES, LayoutError, read_data, read_header, write_data


def written(header: object, data: bytes, path: Path, length: int | None = None) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(*offsets: object, shape: object = None, dtype: str = "U8") -> dict[str, Any]:
    return {"dtype": dtype, "shape": [offsets[1] - offsets[0]] if shape is None else shape, "data_offsets": offsets}


def test_the_bytes_are_those_of_safetensors() -> None:
    torch.manual_seed(0)
    tensors = {
        f"{number % 3}.{name}": torch.randn(5).to(dtype) for number, (name, dtype) in enumerate(DTYPES.items())
    }
    tensors |= {"scalar": torch.ones(()), "empty": torch.zeros(0, 3), 'ß "\n': torch.ones(2, 3, dtype=torch.bool)}
    metadata = {"oarlock": json.dumps({"ÿ": 'quo"te\\', "\udce9": 1})}
    file = io.BytesIO()
    write_data(file, tensors, metadata)
    assert file.getvalue() == safetensors.torch.save(tensors, metadata)


def test_a_header_says_what_each_tensor_is_and_where(tmp_path: Path) -> None:
    path = tmp_path / "x"
    safetensors.torch.save_file({"b": torch.zeros(2, 3), "a": torch.zeros(4, dtype=torch.uint8)}, path, {"k": "v"})
    with open(path, "rb") as file:
        header = read_header(file)
        assert header.metadata == {"k": "v"}
        assert list(header.entries.items()) == [
            ("b", (torch.float32, (2, 3), 0, 24)),
            ("a", (torch.uint8, (4,), 24, 28)),
        ]
        assert read_data(file, header).keys() == {"a", "b"}


NESTED = b'{"a":' * 100_000


@pytest.mark.parametrize(
    ("header", "data", "said"),
    [
        ([], b"", "not a JSON object"),
        (b"{]", b"", "not JSON"),
        (b"\xff\xff", b"", "not JSON"),
        (NESTED, b"", "not JSON"),
        ({"__metadata__": 1}, b"", "metadata"),
        ({"__metadata__": {"a": 1}}, b"", "metadata"),
        ({"a": entry(0, 4)}, bytes(3), "as long as the file"),
        ({"a": entry(0, 4)}, bytes(5), "as long as the file"),
        ({"a": entry(1, 4)}, bytes(4), "begin"),
        ({"a": entry(0, 4), "b": entry(2, 6)}, bytes(6), "begin"),
        ({"a": entry(0, 4), "b": entry(5, 6)}, bytes(6), "begin"),
        ({"a": entry(-4, 0)}, b"", "'a' is not described"),
        ({"a": entry(4, 0, shape=[0])}, b"", "'a' is not described"),
        ({"a": entry(0, 4, shape=[5])}, bytes(4), "'a' is not described"),
        ({"a": entry(0, 4, shape=[-2, -2])}, bytes(4), "'a' is not described"),
        ({"a": entry(0, 4, shape=[4.0])}, bytes(4), "'a' is not described"),
        ({"a": entry(0, 4, shape=[True, 4])}, bytes(4), "'a' is not described"),
        ({"a": entry(0, 4, shape=4)}, bytes(4), "'a' is not described"),
        ({"a": entry(0, 4, shape="4")}, bytes(4), "'a' is not described"),
        ({"a": entry(0, 4, dtype="PICKLE")}, bytes(4), "'a' is not described"),
        ({"a": {"dtype": ["U8"], "shape": [0], "data_offsets": [0, 0]}}, b"", "'a' is not described"),
        ({"a": {"dtype": "U8", "shape": [0], "data_offsets": [0]}}, b"", "'a' is not described"),
        ({"a": {"dtype": "U8", "shape": [0]}}, b"", "'a' is not described"),
        ({"a": 4}, b"", "'a' is not described"),
    ],
)
def test_a_header_that_does_not_fit_the_file_is_refused(
    tmp_path: Path, header: object, data: bytes, said: str
) -> None:
    with open(written(header, data, tmp_path / "x"), "rb") as file, pytest.raises(LayoutError, match=said):
        read_header(file)


@pytest.mark.parametrize("length", [0, 1, 3, 2**31, 2**63, 2**64 - 1])
def test_a_header_cannot_be_longer_than_the_file(tmp_path: Path, length: int) -> None:
    with open(written({}, b"", tmp_path / "x", length), "rb") as file, pytest.raises(LayoutError, match="fit"):
        read_header(file)


def test_a_header_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layout, "LARGEST_HEADER", 20)
    with open(written(b"{}" + b" " * 18, b"", tmp_path / "x"), "rb") as file:
        assert read_header(file).entries == {}
    with open(written(b"{}" + b" " * 19, b"", tmp_path / "x"), "rb") as file, pytest.raises(LayoutError, match="fit"):
        read_header(file)


def test_a_file_that_becomes_shorter_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = written({"a": entry(0, 10**6)}, bytes(10**6), tmp_path / "x")
    with open(path, "rb") as file:
        header = read_header(file)
        path.write_bytes(path.read_bytes()[:-1])
        with pytest.raises(LayoutError, match="shorter"):
            read_data(file, header)
