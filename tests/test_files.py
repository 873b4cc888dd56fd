"""Files that are whole, checked, and free of code."""

import fcntl
import json
import os
import random
import stat
import struct
from pathlib import Path

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oarlock import files
from oarlock.errors import OarlockError
from oarlock.files import (
    append_line,
    fingerprint,
    make_directory,
    new_folder,
    read_json,
    read_tensors,
    replacing,
    write_json,
    write_tensors,
    write_text,
)

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


# -- what was read -------------------------------------------------------------------------------------------


def test_what_was_read_is_not_what_is_in_the_file_later(written):
    tensors, _ = read_tensors(written, "model")
    with open(written, "r+b") as file:  # as cp does it
        file.write(bytes(written.stat().st_size))
    assert all(torch.equal(tensors[name], tensor) for name, tensor in make_tensors().items())
    os.truncate(written, 0)  # a page of a mapped file that is gone kills the process
    assert all(torch.equal(tensors[name], tensor) for name, tensor in make_tensors().items())


def test_every_tensor_has_memory_of_its_own_so_that_none_keeps_the_others(written):
    tensors, _ = read_tensors(written, "model")
    assert all(tensor.untyped_storage().nbytes() == tensor.nbytes for tensor in tensors.values())
    assert len({tensor.data_ptr() for tensor in tensors.values() if tensor.numel()}) == sum(
        tensor.numel() > 0 for tensor in tensors.values()
    )


def test_a_pipe_is_not_waited_for(path):
    os.mkfifo(path)
    assert "no file" in refused(path)
    with pytest.raises(OarlockError, match="no file"):
        read_json(path)


# -- links, devices and pipes --------------------------------------------------------------------------------


def test_a_link_stays_and_what_it_leads_to_is_replaced(path, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    target = tmp_path / "elsewhere" / "real.oar"
    path.symlink_to(target)
    for content in ("new", "newer"):  # at first it leads to nothing
        write_text(path, content)
        assert path.is_symlink() and target.read_text() == content
    write_tensors(path, "model", make_tensors(), {})
    assert path.is_symlink() and read_tensors(target, "model")[0].keys() == make_tensors().keys()
    assert names(target.parent) == ["real.oar"]


def test_links_that_lead_round_in_a_circle_are_refused(path, tmp_path):
    path.symlink_to(tmp_path / "other")
    (tmp_path / "other").symlink_to(path)
    with pytest.raises(OarlockError, match="cannot be written"):
        write_text(path, "x")


@pytest.mark.parametrize("through_a_link", [False, True])
def test_a_pipe_is_written_to_and_stays_one(path, tmp_path, through_a_link):
    os.mkfifo(path)
    named = tmp_path / "link" if through_a_link else path
    if through_a_link:
        named.symlink_to(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    write_text(named, "to whom it may concern")
    assert os.read(reader, 100) == b"to whom it may concern"
    os.close(reader)
    assert stat.S_ISFIFO(path.lstat().st_mode)
    assert names(tmp_path) == sorted({path.name, named.name})


def test_a_device_that_is_full_says_so_and_stays_one():
    device = Path("/dev/full")
    with pytest.raises(OarlockError, match=r"/dev/full cannot be written .No space left"):
        write_text(device, "x")
    assert stat.S_ISCHR(device.stat().st_mode)


def test_what_the_process_prints_to_is_not_replaced(path, capfd):
    with open(path, "w+") as file:
        before = os.dup(1)
        try:
            os.dup2(file.fileno(), 1)
            os.write(1, b"first, ")
            write_text(Path("/dev/stdout"), "second, ")
            os.write(1, b"third")
        finally:
            os.dup2(before, 1)
            os.close(before)
    assert path.read_text() == "first, second, third"


def test_tensors_go_to_files_only(path):
    os.mkfifo(path)
    for place in (path, Path("/dev/null")):
        with pytest.raises(OarlockError, match=f"{place} is no file"):
            write_tensors(place, "model", make_tensors(), {})
    assert stat.S_ISFIFO(path.stat().st_mode) and stat.S_ISCHR(Path("/dev/null").stat().st_mode)


def test_a_folder_is_not_a_place_for_a_file(tmp_path):
    with pytest.raises(OarlockError, match="is a folder"):
        write_text(tmp_path, "x")
    assert names(tmp_path) == []


def test_a_line_is_appended_to_a_file_and_to_nothing_that_was_put_there(tmp_path):
    log, victim = tmp_path / "events.jsonl", tmp_path / "victim"
    append_line(log, "one")
    append_line(log, "two")
    assert log.read_text() == "one\ntwo\n"
    victim.write_text("precious")
    log.unlink()
    log.symlink_to(victim)
    with pytest.raises(OarlockError, match=r"events\.jsonl cannot be written .it is a link"):
        append_line(log, "three")
    assert victim.read_text() == "precious"
    log.unlink()
    os.mkfifo(log)
    with pytest.raises(OarlockError, match=r"events\.jsonl cannot be written"):
        append_line(log, "three")


# -- who may read what ---------------------------------------------------------------------------------------


@pytest.fixture
def open_to_all():
    before = os.umask(0o022)
    yield
    os.umask(before)


@pytest.mark.parametrize(
    ("mode", "mode_of"), [(0o600, None), (0o640, None), (0o400, None), (0o600, "model"), (None, None)]
)
def test_what_is_being_written_is_as_private_as_what_it_replaces(path, tmp_path, mode, mode_of, open_to_all):
    like = None if mode_of is None else tmp_path / mode_of
    if mode is not None:
        (like or path).write_text("old")
        (like or path).chmod(mode)
    with replacing(path, like) as file:
        file.write(b"new")
        (temporary,) = tmp_path.glob(".*.tmp")
        assert temporary.stat().st_mode & 0o777 == (mode or 0o644)
    assert path.stat().st_mode & 0o777 == (mode or 0o644)


def test_a_temporary_file_is_private_from_its_first_moment(path, monkeypatch, open_to_all):
    """Before it has the mode of what it replaces, nobody else may read it either."""
    path.write_text("old")
    path.chmod(0o640)
    modes, fchmod = [], os.fchmod

    def watched(descriptor, mode):
        modes.append(os.fstat(descriptor).st_mode & 0o777)
        fchmod(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", watched)
    write_text(path, "new")
    assert modes == [0o600]


def test_names_of_temporary_files_cannot_be_foreseen_and_are_not_shared(path, tmp_path, monkeypatch):
    seen = set()
    for _ in range(3):
        with replacing(path):
            seen |= {entry.name for entry in tmp_path.glob(".*.tmp")}
    assert len(seen) == 3
    monkeypatch.setattr("oarlock.unfinished.secrets.token_hex", lambda _: "0123456789abcdef")
    (tmp_path / "victim").write_text("precious")
    (tmp_path / ".model.oar.0123456789abcdef.tmp").symlink_to(tmp_path / "victim")
    with pytest.raises(OarlockError, match="File exists"):
        write_text(path, "x")
    assert (tmp_path / "victim").read_text() == "precious"


# -- what was left -------------------------------------------------------------------------------------------

RANDOM = "0123456789abcdef"


def test_what_a_killed_process_left_is_removed_and_nothing_else(path, tmp_path):
    ours = tmp_path / f".model.oar.{RANDOM}.tmp"
    ours.write_text("half")
    others = [
        f".model.oar.{RANDOM.upper()}.tmp",
        f".model.oar.{RANDOM}0.tmp",
        f".model.oar.{RANDOM}.tmp2",
        ".model.oar.notes.tmp",
        f"model.oar.{RANDOM}.tmp",
        f".modelXoar.{RANDOM}.tmp",
        f".model.oar.x.{RANDOM}.tmp",
    ]
    for name in others:
        (tmp_path / name).write_text("somebody else's")
    write_text(path, "x")
    assert names(tmp_path) == sorted([*others, path.name])


def test_a_folder_a_link_and_what_is_being_written_stay(path, tmp_path):
    kept = [f".model.oar.{digit * 16}.tmp" for digit in "abcd"]
    (tmp_path / kept[0]).mkdir()
    (tmp_path / "victim").write_text("precious")
    (tmp_path / kept[1]).symlink_to(tmp_path / "victim")
    os.mkfifo(tmp_path / kept[2])
    (tmp_path / kept[3]).write_text("half")
    with open(tmp_path / kept[3]) as at_work:
        fcntl.flock(at_work, fcntl.LOCK_EX)
        write_text(path, "x")
    assert names(tmp_path) == sorted([*kept, "victim", path.name])
    write_text(path, "x")
    assert names(tmp_path) == sorted([*kept[:3], "victim", path.name])


def test_two_that_write_the_same_file_do_not_disturb_each_other(path):
    with replacing(path) as one:
        one.write(b"one")
        write_text(path, "other")
        assert path.read_text() == "other"
    assert path.read_text() == "one"
    assert names(path.parent) == [path.name]


# -- folders -------------------------------------------------------------------------------------------------


def test_a_folder_appears_when_all_is_in_it_and_is_private_until_then(tmp_path, open_to_all):
    out = tmp_path / "groups"
    left = tmp_path / f".groups.{RANDOM}.tmp"
    left.mkdir()
    (left / "half.jpg").write_text("half")
    with new_folder(out) as folder:
        assert not left.exists() and not out.exists()
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "a").mkdir()
        (folder / "a" / "x.jpg").write_text("x")
    assert (out / "a" / "x.jpg").read_text() == "x"
    assert out.stat().st_mode & 0o777 == 0o755
    assert names(tmp_path) == ["groups"]


def test_a_folder_that_fails_leaves_nothing(tmp_path):
    with pytest.raises(KeyboardInterrupt), new_folder(tmp_path / "groups") as folder:
        (folder / "x.jpg").write_text("x")
        raise KeyboardInterrupt
    assert names(tmp_path) == []


@pytest.fixture
def synced(monkeypatch):
    """The inodes that were written through to the disk."""
    found, fsync = [], os.fsync

    def watched(descriptor):
        found.append(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", watched)
    return found


def test_the_folders_above_a_new_one_are_made_durable_and_only_these(tmp_path, synced):
    make_directory(tmp_path / "a" / "b")
    assert set(synced) == {tmp_path.stat().st_ino, (tmp_path / "a").stat().st_ino}
    synced.clear()
    make_directory(tmp_path / "a" / "b")
    assert synced == []


def test_a_new_folder_and_all_that_is_in_it_are_durable(tmp_path, synced):
    with new_folder(tmp_path / "groups") as folder:
        (folder / "a").mkdir()
        (folder / "a" / "x.jpg").write_text("x")
    made = [tmp_path, *(tmp_path / "groups", tmp_path / "groups" / "a", tmp_path / "groups" / "a" / "x.jpg")]
    assert {path.stat().st_ino for path in made} <= set(synced)


def test_a_folder_that_cannot_be_synchronised_is_no_reason_to_say_that_nothing_was_written(path, monkeypatch):
    fsync = os.fsync

    def failing(descriptor):
        if stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise OSError(22, "Invalid argument")
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", failing)
    with pytest.warns(UserWarning, match=r"is there, but a power cut may undo it.*Invalid argument"):
        write_text(path, "x")
    assert path.read_text() == "x"
    with pytest.warns(UserWarning, match="power cut"):
        make_directory(path.parent / "run")
    assert (path.parent / "run").is_dir()
    monkeypatch.setattr(os, "fsync", lambda descriptor: failing(os.open(path.parent, os.O_RDONLY)))
    with pytest.raises(OarlockError, match="cannot be written"):
        write_text(path, "y")
    assert path.read_text() == "x"


# -- JSON and fingerprints -----------------------------------------------------------------------------------


def test_json_comes_back(tmp_path):
    write_json(tmp_path / "a.json", DESCRIPTION)
    assert read_json(tmp_path / "a.json") == DESCRIPTION


NESTED, LONG = b"[" * 200_000, b"9" * 9999


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe{}", b'{"a": 1} x', NESTED, LONG],
    ids=lambda content: repr(content[:12]),
)
def test_damaged_json_is_refused_by_the_files_name(tmp_path, content):
    path = tmp_path / "a.json"
    path.write_bytes(content)
    with pytest.raises(OarlockError, match=r"a\.json"):
        read_json(path)


def test_json_that_is_too_large_is_not_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "LARGEST_JSON", 10)
    (tmp_path / "a.json").write_text('"12345678"')
    assert read_json(tmp_path / "a.json") == "12345678"
    (tmp_path / "a.json").write_text('"123456789"')
    with pytest.raises(OarlockError, match=r"a\.json is damaged.*larger"):
        read_json(tmp_path / "a.json")


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
