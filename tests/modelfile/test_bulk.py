"""`oarlock predict --out`: answers in a file, in chunks that are kept, in one process and on Ray."""

import json
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem
from PIL import Image

from conftest import Command, make_task
from modelfile.conftest import SMALL, write_classes
from oarlock import Learner, OarlockError
from oarlock import clusters as engines
from oarlock.modelfile import answer_files, bulk
from oarlock.modelfile.bulk import Answerer, Asking, Chunk
from oarlock.nets.trunks import Trunk

Say = Callable[[], str]


@pytest.fixture(scope="module")
def model(tiny_trunk: Trunk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "shop.oar"
    Learner("oar", trunk=tiny_trunk, memory=12, **SMALL).learn(*make_task(["ant", "bee"], 20)).save(path)
    return path


@pytest.fixture(autouse=True)
def _small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bulk, "BATCHES", 2)


BATCH = ("--batch", 4)  # so that a chunk has eight images


@pytest.fixture
def images(here: Path) -> Path:
    """Twenty images, two of them broken."""
    folder = write_classes(here / "images", "ant", "bee", count=10, seed=1)
    for name in ("ant/3.png", "bee/9.png"):
        (folder / name).write_bytes(b"no image")
    return folder


@pytest.fixture
def printed(oarlock: Command, model: Path, images: Path, capsys: pytest.CaptureFixture) -> dict[str, dict]:
    """What `predict --json` says, by path."""
    assert oarlock("predict", model, images, "--json", *BATCH) == 1
    return {answer["path"]: answer for answer in map(json.loads, capsys.readouterr().out.splitlines())}


def read_lines(content: bytes) -> list[dict]:
    return [json.loads(line) for line in content.splitlines()]


def assert_same_answers(rows: list[dict], printed: dict[str, dict], images: Path) -> None:
    """Every image once and in order; a batch of other images may round differently."""
    assert [row["path"] for row in rows] == sorted(str(path) for path in images.rglob("*.png"))
    broken = {row["path"]: row["error"] for row in rows if row.get("error")}
    assert sorted(broken) == [str(images / "ant" / "3.png"), str(images / "bee" / "9.png")]
    assert all(error.startswith(f"{path}: not a readable image") for path, error in broken.items())
    for row in rows:
        if row["path"] in broken:
            assert all(row.get(name) is None for name in ("label", "unknown", "probability", "task", "score"))
        else:
            wanted = printed[row["path"]]
            assert [row[name] for name in ("label", "unknown", "task")] == [
                wanted[name] for name in ("label", "unknown", "task")
            ]
            for name in ("probability", "score"):
                assert row[name] == pytest.approx(wanted[name], rel=1e-4, abs=1e-5)


def test_lines_are_those_that_are_printed(
    oarlock: Command, model: Path, images: Path, printed: dict[str, dict], capsys: pytest.CaptureFixture
) -> None:
    assert oarlock("predict", model, images, "--out", "answers.jsonl", *BATCH) == 0
    assert capsys.readouterr().out == "answers.jsonl: 20 images, 2 of them not readable\n"
    rows = read_lines(Path("answers.jsonl").read_bytes())
    assert_same_answers(rows, printed, images)
    assert {tuple(row) for row in rows} == {tuple(next(iter(printed.values()))), ("path", "error")}
    assert {path.name for path in Path().iterdir()} == {"images", "answers.jsonl"}


def test_parquet_has_the_same_fields_and_one_for_errors(
    oarlock: Command, model: Path, images: Path, printed: dict[str, dict]
) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    assert oarlock("predict", model, images, "--out", "answers.parquet", *BATCH) == 0
    table = parquet.read_table("answers.parquet")
    assert table.column_names == [*next(iter(printed.values())), "error"]
    assert_same_answers(table.to_pylist(), printed, images)
    assert oarlock("predict", model, images, "--out", "answers.parquet", "--top", 2, *BATCH) == 0
    best = parquet.read_table("answers.parquet")["top"].to_pylist()
    assert [{answer["label"] for answer in top} for top in best if top is not None] == [{"ant", "bee"}] * 18


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Chunk]:
    """The chunks that were answered; the third one ends in Ctrl-C, once."""
    chunks: list[Chunk] = []
    answer = Answerer.answer

    def recorded(answerer: Answerer, chunk: Chunk) -> None:
        chunks.append(chunk)
        if len(chunks) == 3:
            raise KeyboardInterrupt
        answer(answerer, chunk)

    monkeypatch.setattr(Answerer, "answer", recorded)
    return chunks


@pytest.mark.parametrize("suffix", ["jsonl", "parquet"])
def test_a_second_call_goes_on_where_the_first_one_stopped(
    suffix: str, oarlock: Command, model: Path, images: Path, asked: list[Chunk]
) -> None:
    if suffix == "parquet":
        pytest.importorskip("pyarrow")
    stopped = ("predict", model, images, "--out", f"stopped.{suffix}", *BATCH)
    assert oarlock(*stopped) == 130
    assert not Path(f"stopped.{suffix}").exists()
    assert oarlock(*stopped) == 0
    assert [chunk.part[:6] for chunk in asked] == ["000000", "000001", "000002", "000002"]
    assert oarlock("predict", model, images, "--out", f"whole.{suffix}", *BATCH) == 0
    assert len(asked) == 7
    assert Path(f"whole.{suffix}").read_bytes() == Path(f"stopped.{suffix}").read_bytes()
    assert not list(Path().glob("*.parts"))


@pytest.mark.parametrize("change", ["model", "accept", "paths"])
def test_what_was_answered_otherwise_is_asked_again(
    change: str, oarlock: Command, model: Path, images: Path, asked: list[Chunk], tiny_trunk: Trunk
) -> None:
    own = Path("own.oar")
    own.write_bytes(model.read_bytes())
    command = ["predict", own, images, "--out", "answers.jsonl", *BATCH]
    assert oarlock(*command) == 130
    if change == "model":
        Learner("slda", trunk=tiny_trunk).learn(*make_task(["ant", "bee"], 20)).save(own)
    elif change == "accept":
        command += ["--accept", 0.5]
    else:
        write_classes(images, "bee", count=12, seed=1)  # two more, at the end
    assert oarlock(*command) == 0
    again = [chunk.part[:6] for chunk in asked[3:]]
    assert again == (["000001", "000002"] if change == "paths" else ["000000", "000001", "000002"])


@pytest.fixture
def bucket() -> Iterator[str]:
    """A store that is no folder of this machine."""
    MemoryFileSystem.store.clear()
    yield "memory://bucket"
    MemoryFileSystem.store.clear()


def test_images_and_answers_may_lie_in_a_store(
    bucket: str, oarlock: Command, model: Path, images: Path, printed: dict[str, dict], capsys: pytest.CaptureFixture
) -> None:
    files = MemoryFileSystem()
    files.put(f"{images}/", "/bucket/photos", recursive=True)
    files.pipe_file("/bucket/photos/.hidden/x.png", b"")
    files.pipe_file("/bucket/photos/list.txt", b"")
    assert oarlock("predict", model, f"{bucket}/photos", "--out", f"{bucket}/answers.jsonl", *BATCH) == 0
    rows = read_lines(files.cat_file("/bucket/answers.jsonl"))
    assert all(row["path"].startswith("memory:///bucket/photos/") for row in rows)
    there, here = "memory:///bucket/photos", str(images)
    local = [{name: _moved(value, there, here) for name, value in row.items()} for row in rows]
    assert_same_answers(local, printed, images)
    assert [name for name in files.find("/bucket") if "photos" not in name] == ["/bucket/answers.jsonl"]
    assert oarlock("predict", model, f"{bucket}/nothing", "--out", "answers.jsonl") == 2
    assert oarlock("predict", model, images, "--out", "nowhere://answers.jsonl") == 2
    assert "memory://bucket/nothing: no images there" in capsys.readouterr().err


def _moved(value: object, there: str, here: str) -> object:
    return value.replace(there, here) if isinstance(value, str) else value


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--out", "answers.txt"], "ends in .jsonl or .parquet"),
        (["--out", "answers.jsonl", "--json"], "leave out --json"),
        (["--on", "ray"], "--on goes with --out"),
        (["--on", "spark", "--out", "answers.jsonl"], "--on spark"),
        (["--on", "ray", "--out", "answers.jsonl"], "oarlock[ray]"),
        (["--out", "answers.parquet"], "oarlock[ray]"),
    ],
)
def test_a_mistake_is_one_line(
    arguments: list[str],
    words: str,
    oarlock: Command,
    model: Path,
    images: Path,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for room in (engines, answer_files):
        monkeypatch.setattr(room, "find_spec", lambda package: None)
    assert oarlock("predict", model, images, *arguments) == 2
    error = capsys.readouterr().err
    assert words in error and error.count("\n") == 1
    assert {path.name for path in Path().iterdir()} == {"images"}


@pytest.fixture
def small_cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Ray with one place to work. Its workers give way to everything else, which on a busy machine means that they
    hardly begin."""
    import ray

    monkeypatch.setenv("RAY_worker_niceness", "0")
    ray.init(num_cpus=1, object_store_memory=80 * 2**20, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.xdist_group("ray")
@pytest.mark.skipif(find_spec("ray") is None, reason="needs ray")
@pytest.mark.usefixtures("small_cluster")
def test_ray_answers_as_one_process_does(
    oarlock: Command, model: Path, images: Path, printed: dict[str, dict], capsys: pytest.CaptureFixture
) -> None:
    from oarlock.modelfile.bulk_ray import on_ray

    listed = [str(path) for path in sorted(images.rglob("*.png"))]
    asking = Asking(accept=0.95, batch=4)
    counted = bulk.answer_into("there.parquet", model, listed, asking, engine=on_ray("ray"))
    assert counted == bulk.answer_into("here.parquet", model, listed, asking) == (20, 2)
    parquet = pytest.importorskip("pyarrow.parquet")
    assert_same_answers(parquet.read_table("there.parquet").to_pylist(), printed, images)
    assert not list(Path().glob("*.parts"))
    with pytest.raises(OarlockError, match=r"memory://x/a.png: is in this process alone"):
        bulk.answer_into("there.jsonl", model, ["memory://x/a.png"], asking, engine=on_ray("ray"))


def test_numbers_stay_numbers(tiny_trunk: Trunk, here: Path) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    pictures, labels = make_task([3, 7], 10)
    Learner("slda", trunk=tiny_trunk).learn(pictures, labels).save("numbers.oar")
    Image.fromarray(np.asarray(pictures[0])).save("a.png")
    bulk.answer_into("answers.parquet", Path("numbers.oar"), ["a.png"], Asking())
    assert parquet.read_table("answers.parquet")["label"].to_pylist() == [3]
