"""Files that are whole, checked, and free of code."""

import json
import os
import random
import struct

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oarlock import files
from oarlock.errors import OarlockError
from oarlock.files import fingerprint, read_json, read_tensors, replacing, write_json, write_tensors, write_text

DESCRIPTION = {"classes": ["ÿak", "日本", 'quo"te\\', 7, None, True], "nested": {"a": [1.5, {"b": []}]}, "empty": {}}


def make_tensors() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    return {
        "single": torch.randn(3, 4),
        "double": torch.randn(2, dtype=torch.float64),
        "half": torch.randn(5).half(),
        "brain": torch.randn(5).bfloat16(),
        "bool": torch.tensor([[True, False, True]]),
        "long": torch.tensor([2**62, -1, 0]),
        "byte": torch.arange(7, dtype=torch.uint8),
        "scalar": torch.tensor(2.5),
        "flag": torch.tensor(True),
        "empty": torch.zeros(0, 5),
        "empty.long": torch.zeros(3, 0, 2, dtype=torch.long),
        "special": torch.tensor([float("inf"), -float("inf"), -0.0, 1e-45]),
    }


@pytest.fixture
def path(tmp_path):
    return tmp_path / "model.oar"


@pytest.fixture
def written(path):
    write_tensors(path, "model", make_tensors(), DESCRIPTION)
    return path


# -- round trip ----------------------------------------------------------------------------------------------


def test_tensors_of_every_type_and_shape_come_back_bit_for_bit(written):
    tensors, _ = read_tensors(written, "model")
    expected = make_tensors()
    assert tensors.keys() == expected.keys()
    for name, tensor in expected.items():
        assert (tensors[name].dtype, tensors[name].shape) == (tensor.dtype, tensor.shape), name
        assert torch.equal(tensors[name], tensor), name


def test_the_description_comes_back_with_kind_and_format(written):
    assert read_tensors(written, "model")[1] == {**DESCRIPTION, "kind": "model", "format": files.FORMAT}


def test_nan_comes_back(path):
    write_tensors(path, "model", {"x": torch.tensor([float("nan"), 1.0])}, {})
    assert read_tensors(path, "model")[0]["x"].isnan().tolist() == [True, False]


def test_views_transposed_and_with_gradients_come_back_as_they_look(path):
    base = torch.arange(24.0).reshape(4, 6)
    tensors = {
        "transposed": base.T,
        "rows": base[1:3],
        "column": base[:, 2],
        "expanded": torch.ones(1, 3).expand(4, 3),
        "parameter": torch.nn.Parameter(torch.ones(2)) * 3,
    }
    write_tensors(path, "model", tensors, {})
    found, _ = read_tensors(path, "model")
    assert all(torch.equal(found[name], tensor.detach()) for name, tensor in tensors.items())


def test_a_file_without_tensors_is_a_file(path):
    write_tensors(path, "model", {}, {"a": 1})
    assert read_tensors(path, "model") == ({}, {"a": 1, "kind": "model", "format": files.FORMAT})


@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8"), max_size=5),
        st.lists(st.integers(-(2**60), 2**60), max_size=4),
        max_size=4,
    ),
    st.dictionaries(st.text(st.characters(codec="utf-8")), st.text(st.characters(codec="utf-8")), max_size=3),
)
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_names_and_any_description_come_back(tmp_path, content, description):
    if "__metadata__" in content or {"kind", "format"} & description.keys():
        return
    tensors = {name: torch.tensor(values, dtype=torch.long) for name, values in content.items()}
    write_tensors(tmp_path / "any.oar", "model", tensors, description)
    found, described = read_tensors(tmp_path / "any.oar", "model")
    assert {name: tensor.tolist() for name, tensor in found.items()} == content
    assert described == {**description, "kind": "model", "format": files.FORMAT}


def test_a_file_is_plain_safetensors_and_holds_no_pickle(written):
    raw = written.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    assert header["__metadata__"].keys() == {"oarlock"}
    assert header["long"]["dtype"] == "I64"
    offsets = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
    assert max(end for _, end in offsets) == len(raw) - 8 - length  # nothing besides header and tensors
    assert safetensors.torch.load(raw)["byte"].tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert not raw.startswith((b"PK", b"\x80"))  # neither torch's zip nor a bare pickle


# -- damage --------------------------------------------------------------------------------------------------


def refused(path, kind="model") -> str:
    with pytest.raises(OarlockError) as caught:
        read_tensors(path, kind)
    assert str(path) in str(caught.value)
    return str(caught.value)


def test_a_file_cut_short_anywhere_is_refused(written):
    whole = written.read_bytes()
    lengths = {*range(24), *range(24, len(whole), 37), *range(len(whole) - 20, len(whole))}
    for length in sorted(lengths):
        written.write_bytes(whole[:length])
        refused(written)


def test_a_file_with_bytes_after_its_end_is_refused(written):
    written.write_bytes(written.read_bytes() + b"\0")
    refused(written)


def flipped(whole: bytes, bit: int) -> bytes:
    damaged = bytearray(whole)
    damaged[bit // 8] ^= 1 << bit % 8
    return bytes(damaged)


def test_a_single_flipped_bit_anywhere_is_refused(written):
    whole = written.read_bytes()
    bits = random.Random(0).sample(range(8 * len(whole)), 400)
    for bit in [*range(64), *bits]:  # all of the header's length, and many elsewhere
        written.write_bytes(flipped(whole, bit))
        refused(written)


def test_a_flipped_bit_in_any_byte_of_a_small_file_is_refused(path):
    write_tensors(path, "model", {"w": torch.tensor([1.0, -0.0]), "b": torch.tensor([True])}, {"classes": ["a"]})
    whole = path.read_bytes()
    for bit in range(0, 8 * len(whole), 7):
        path.write_bytes(flipped(whole, bit))
        refused(path)


def rewritten(path, tensors=None, **changes) -> None:
    """The file with tensors or entries of the description exchanged, and the checksum left as it was."""
    raw = path.read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    metadata = json.loads(raw[8 : 8 + length])["__metadata__"]
    metadata["oarlock"] = json.dumps({**json.loads(metadata["oarlock"]), **changes})
    path.write_bytes(safetensors.torch.save(tensors or safetensors.torch.load(raw), metadata))


def test_a_swapped_renamed_missing_retyped_or_reshaped_tensor_is_refused(path):
    x, y = torch.arange(4.0), torch.arange(4.0) + 1
    others = [
        {"x": y, "y": x},
        {"x": x, "z": y},
        {"x": x},
        {"x": x, "y": y, "z": y.clone()},
        {"x": x, "y": y.view(torch.int32)},
        {"x": x, "y": y.reshape(2, 2)},
    ]
    for tensors in others:
        write_tensors(path, "model", {"x": x, "y": y}, {})
        rewritten(path, tensors)
        assert "checksum" in refused(path)
    write_tensors(path, "model", {"x": x, "y": y}, {})
    rewritten(path, {"x": x, "y": y})
    assert read_tensors(path, "model")[0].keys() == {"x", "y"}  # the tool itself does no damage


def test_a_changed_description_is_refused(written):
    rewritten(written, classes=["other"])
    assert "checksum" in refused(written)


# -- foreign files -------------------------------------------------------------------------------------------


def test_safetensors_of_somebody_else_are_refused(path):
    safetensors.torch.save_file({"x": torch.zeros(2)}, path)
    assert "not written by Oarlock" in refused(path)
    safetensors.torch.save_file({"x": torch.zeros(2)}, path, {"format": "pt"})
    assert "not written by Oarlock" in refused(path)


def test_an_oarlock_description_without_a_checksum_is_refused(path):
    safetensors.torch.save_file({"x": torch.zeros(2)}, path, {"oarlock": '{"kind": "model", "format": 1}'})
    refused(path)


@pytest.mark.parametrize(
    "content",
    [b"", b"\0", b"just some text\n" * 40, b"{}", b"\x89PNG\r\n\x1a\n" + bytes(64), bytes(200), b"\xff" * 99],
)
def test_text_images_and_empty_files_are_refused(path, content):
    path.write_bytes(content)
    refused(path)


def test_a_torch_pickle_is_refused_and_not_run(path, tmp_path):
    class Payload:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "pwned"),)

    torch.save({"x": torch.zeros(2), "y": Payload()}, path)
    refused(path)
    torch.save(Payload(), path)
    refused(path)
    assert not (tmp_path / "pwned").exists()


def test_a_missing_file_and_a_folder_are_refused(path, tmp_path):
    assert "no file" in refused(path)
    assert "no file" in refused(tmp_path)


def test_another_kind_of_file_is_refused_by_both_names(written):
    message = refused(written, "checkpoint")
    assert "model" in message and "checkpoint" in message


def test_a_file_of_a_newer_format_is_refused_with_the_advice_to_upgrade(path, monkeypatch):
    monkeypatch.setattr(files, "FORMAT", files.FORMAT + 1)
    write_tensors(path, "model", {"x": torch.zeros(1)}, {})
    monkeypatch.undo()
    assert "upgrade" in refused(path)


# -- writing -------------------------------------------------------------------------------------------------


def names(folder) -> list[str]:
    return sorted(entry.name for entry in folder.iterdir())


def test_what_was_there_stays_when_writing_fails(path):
    path.write_text("old")
    with pytest.raises(KeyError), replacing(path) as file:
        file.write(b"half of the n")
        file.flush()
        assert path.read_text() == "old"
        raise KeyError
    assert path.read_text() == "old"
    assert names(path.parent) == [path.name]


def test_nothing_appears_when_writing_fails(path):
    with pytest.raises(KeyboardInterrupt), replacing(path) as file:
        file.write(b"half of the n")
        raise KeyboardInterrupt
    assert names(path.parent) == []


def test_the_new_content_takes_the_old_ones_place_at_once_and_alone(path):
    path.write_text("old")
    with replacing(path) as file:
        file.write(b"new")
        assert len(names(path.parent)) == 2  # a rename across file systems is not atomic
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert names(path.parent) == [path.name]


def test_a_file_that_others_may_not_read_stays_so(path):
    path.write_text("old")
    path.chmod(0o600)
    write_text(path, "new")
    assert (path.read_text(), path.stat().st_mode & 0o777) == ("new", 0o600)


def test_a_name_that_could_not_be_read_back_is_refused(tmp_path):
    with pytest.raises(OarlockError, match="valid UTF-8"):
        write_text(tmp_path / os.fsdecode(b"caf\xe9.oar"), "content")
    assert names(tmp_path) == []


def test_a_failed_rename_leaves_no_temporary_file(path, monkeypatch):
    path.write_text("old")

    def fail(*_):
        raise OSError(28, "no space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(OarlockError, match=r"cannot be written .no space"):
        write_tensors(path, "model", make_tensors(), {})
    assert path.read_text() == "old"
    assert names(path.parent) == [path.name]


def test_content_is_on_disk_before_the_name_changes_and_the_folder_after(path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def watched_fsync(descriptor):
        events.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    def watched_replace(source, target):
        events.append("replace")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", watched_fsync)
    monkeypatch.setattr(os, "replace", watched_replace)
    write_text(path, "x")
    assert events == [path.stat().st_ino, "replace", path.parent.stat().st_ino]


def test_a_description_that_is_not_json_leaves_the_old_file_alone(written):
    before = written.read_bytes()
    with pytest.raises(TypeError):
        write_tensors(written, "model", {}, {"bad": {1, 2}})
    assert written.read_bytes() == before
    assert names(written.parent) == [written.name]


# -- JSON and fingerprints -----------------------------------------------------------------------------------


def test_json_comes_back(tmp_path):
    write_json(tmp_path / "a.json", DESCRIPTION)
    assert read_json(tmp_path / "a.json") == DESCRIPTION


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe{}", b'{"a": 1} x'])
def test_damaged_json_is_refused_by_the_files_name(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(OarlockError, match=r"a\.json"):
        read_json(path)


def test_missing_json_is_refused(tmp_path):
    with pytest.raises(OarlockError, match="No such file"):
        read_json(tmp_path / "a.json")


def test_a_fingerprint_depends_on_names_types_shapes_bits_and_text_and_on_nothing_else():
    x, y = torch.tensor([1.0, 0.0]), torch.tensor([3, 4])
    base = fingerprint({"x": x, "y": y}, "t")
    assert base == fingerprint({"y": y.clone(), "x": torch.nn.Parameter(x)}, "t")
    variants = [
        fingerprint({"x": x, "y": y}),
        fingerprint({"x": x, "z": y}, "t"),
        fingerprint({"x": x}, "t"),
        fingerprint({"x": x.double(), "y": y}, "t"),
        fingerprint({"x": x[None], "y": y}, "t"),
        fingerprint({"x": torch.tensor([1.0, -0.0]), "y": y}, "t"),
        fingerprint({"x": x.view(torch.int32), "y": y}, "t"),
        fingerprint({"x": torch.zeros(0), "y": y}, "t"),
        fingerprint({"x": torch.zeros(0, 3), "y": y}, "t"),
    ]
    assert len({base, *variants}) == 1 + len(variants)
