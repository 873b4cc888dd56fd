"""What a program may ask: answers are those of `predict`, however they are asked for."""

import base64
import json
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from conftest import Command, make_task
from oarlock import Learner, load
from oarlock.nets.trunks import Trunk
from oarlock.studio.batching import Batcher
from oarlock.studio.current import CurrentModel, Loaded
from oarlock.studio.refusals import Refusal
from studio.conftest import form, photos_of, write_photos

MIXED = [*photos_of("ant"), *photos_of("fox"), *photos_of("cow")]


def as_base64(photos: list[tuple[str, bytes]]) -> list[str]:
    return [base64.b64encode(content).decode() for _, content in photos]


def test_answers_are_those_of_the_command(
    client: TestClient, model: Path, tmp_path: Path, oarlock: Command, capsys: pytest.CaptureFixture
) -> None:
    files = sorted(write_photos(tmp_path / "mixed", "ant", "fox", "cow").rglob("*.png"))
    assert oarlock("predict", model, *files, "--json", "--top", 2, "--accept", 0.9) == 0
    expected = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    sent = [(file.name, file.read_bytes()) for file in files]
    by_form = client.post("/predict", files=form(sent), data={"accept": "0.9", "top": "2"}).json()
    by_json = client.post("/predict", json={"images": as_base64(sent), "accept": 0.9, "top": 2}).json()
    named = [{"name": name, "data": data} for (name, _), data in zip(sent, as_base64(sent), strict=True)]
    by_name = client.post("/predict", json={"images": named, "accept": 0.9, "top": 2}).json()
    assert by_form["model"] == by_json["model"] and by_form["accept"] == 0.9 and by_name == by_form
    assert {answer["unknown"] for answer in by_form["answers"]} == {True, False}
    for answers in (by_form["answers"], by_json["answers"]):
        for answer, wanted in zip(answers, expected, strict=True):
            assert (answer["label"], answer["unknown"], answer["task"]) == (
                wanted["label"],
                wanted["unknown"],
                wanted["task"],
            )
            assert answer["probability"] == pytest.approx(wanted["probability"], abs=1e-4)
            assert answer["score"] == pytest.approx(wanted["score"], rel=1e-3)
            assert [one["label"] for one in answer["top"]] == [one["label"] for one in wanted["top"]]


def test_without_a_threshold_nothing_is_unknown(client: TestClient) -> None:
    answers = client.post("/predict", json={"images": as_base64(MIXED), "accept": None}).json()["answers"]
    assert not any(answer["unknown"] for answer in answers)


def test_unknown_photos_come_in_groups_of_a_kind(client: TestClient) -> None:
    photos = [*photos_of("fox"), *photos_of("ant"), *photos_of("viper")]
    found = client.post("/unknowns/group", files=form(photos), data={"groups": "2", "accept": "0.9"}).json()
    rejected = {number for number, answer in enumerate(found["answers"]) if answer["unknown"]}
    assert rejected >= {*range(6), *range(12, 18)}
    assert sorted(number for group in found["groups"] for number in group["images"]) == sorted(rejected)
    for group in found["groups"]:
        assert group["distances"] == sorted(group["distances"])
    fox = next(group for group in found["groups"] if 0 in group["images"])
    assert {*range(6)} <= {*fox["images"]} and not {*range(12, 18)} & {*fox["images"]}


def test_nothing_unknown_is_no_group(client: TestClient) -> None:
    found = client.post("/unknowns/group", files=form(photos_of("ant", seed=0)), data={"accept": "1"}).json()
    assert found["groups"] == [] and len(found["answers"]) == 6


def test_what_the_model_is(client: TestClient, model: Path) -> None:
    facts, learner = client.get("/model").json(), load(model)
    assert facts["tasks"] == [["ant", "bee", "cow"]] and facts["method"] == "slda"
    assert [0.95, learner.threshold(0.95)] in facts["thresholds"]
    assert client.get("/health").json()["status"] == "ok"


def test_metrics_are_what_prometheus_reads(client: TestClient) -> None:
    client.post("/predict", files=form(MIXED))
    client.get("/nowhere/at/all")
    client.post("/predict", content=b"x")
    text = client.get("/metrics").text
    lines = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert lines['oarlock_requests_total{method="POST",route="/predict",status="200"}'] == "1"
    assert lines['oarlock_requests_total{method="POST",route="/predict",status="415"}'] == "1"
    assert lines['oarlock_requests_total{method="GET",route="other",status="404"}'] == "1"
    assert lines['oarlock_request_seconds_bucket{route="/predict",le="+Inf"}'] == "2"
    assert float(lines["oarlock_images_total"]) == len(MIXED) and float(lines["oarlock_unknown_total"]) > 0
    kinds = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(kinds) == len(set(kinds)) and all(any(name.startswith(kind) for name in lines) for kind in kinds)


def test_the_description_names_every_route_and_the_page_of_it_brings_nothing_from_elsewhere(client) -> None:
    paths = client.get("/openapi.json").json()["paths"]
    assert {"/predict", "/unknowns/group", "/model", "/health", "/metrics", "/label-studio/predict"} <= paths.keys()
    assert not any(path.startswith("/api/") for path in paths)
    page = client.get("/docs").text
    assert "http://" not in page and "https://" not in page


# Many at a time


def test_requests_at_the_same_time_share_passes(model: Path) -> None:
    current, batcher = CurrentModel(model), Batcher()
    loaded = current.need()
    pictures = make_task(["ant", "fox"], 40)[0]
    alone = loaded.learner.predict_scores(pictures)
    started, go_on, real = threading.Event(), threading.Event(), loaded.learner.predict_scores

    def slow(images: np.ndarray):
        started.set()
        go_on.wait(20)
        return real(images)

    loaded.learner.predict_scores = slow  # type: ignore[method-assign]
    first = batcher.ask(loaded, pictures[:1])
    assert started.wait(20)
    waiting = [batcher.ask(loaded, pictures[row : row + 1]) for row in range(1, len(pictures))]
    go_on.set()
    answers = [one.result(20) for one in [first, *waiting]]
    assert batcher.passes == 3 and batcher.images == 80  # 1, 64, and what was left
    scores = np.concatenate([answer.scores.numpy() for answer in answers])
    assert np.allclose(scores, alone.scores.numpy(), rtol=1e-3, atol=1e-2)
    assert np.array_equal(scores.argmax(1), alone.scores.numpy().argmax(1))
    batcher.stop()


def test_a_pass_that_fails_fails_for_those_in_it_only(model: Path) -> None:
    current, batcher = CurrentModel(model), Batcher()
    with pytest.raises(Exception, match="shape"):
        batcher.ask(current.need(), np.zeros((1, 2, 2, 2, 2), "uint8")).result(20)
    pictures = make_task(["ant"], 2)[0]
    assert len(batcher.ask(current.need(), pictures).result(20).scores) == 2
    with pytest.raises(Refusal, match="waiting already"):
        Batcher(most=1).ask(current.need(), pictures)
    batcher.stop()


def test_many_clients_get_their_own_answers(client: TestClient) -> None:
    photos = [photo for name in ("ant", "bee", "cow") for photo in photos_of(name, 8, seed=0)]
    wanted = [answer["label"] for answer in client.post("/predict", files=form(photos)).json()["answers"]]

    def ask(number: int) -> object:
        return client.post("/predict", files=form([photos[number]])).json()["answers"][0]["label"]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(len(photos)))) == wanted


# The file changes


@pytest.fixture
def other(tiny_trunk: Trunk, tmp_path: Path) -> Path:
    path = tmp_path / "other.oar"
    Learner("slda", trunk=tiny_trunk, calibration=0.5).learn(*make_task(["fox", "owl"], 20)).save(path)
    return path


def test_a_new_file_is_answered_from_and_a_broken_one_is_not(
    client: TestClient, model: Path, other: Path, monkeypatch
) -> None:
    monkeypatch.setattr("oarlock.studio.current.LOOK", 0.0)
    first = client.get("/model").json()["version"]
    other.replace(model)
    assert client.get("/model").json()["tasks"] == [["fox", "owl"]]
    second = client.get("/model").json()["version"]
    model.write_bytes(b"broken")
    answer = client.post("/predict", files=form(MIXED)).json()
    assert answer["model"] == second != first
    assert "broken" not in str(client.get("/api/overview").json()["problem"])
    assert "damaged" in client.get("/api/overview").json()["problem"]
    assert client.get("/health").status_code == 200


def test_a_request_keeps_the_model_that_it_began_with(model: Path, other: Path, monkeypatch) -> None:
    monkeypatch.setattr("oarlock.studio.current.LOOK", 0.0)
    current, batcher = CurrentModel(model), Batcher()
    old, pictures = current.need(), make_task(["ant", "bee"], 3)[0]
    wanted = old.learner.predict_scores(pictures)
    other.replace(model)
    new = current.need()
    assert new is not old and current.need() is new
    futures = [batcher.ask(one, pictures) for one in (old, new, old, new)]
    answers = [future.result(20) for future in futures]
    assert [answer.scores.shape[1] for answer in answers] == [3, 2, 3, 2]
    assert np.allclose(answers[2].scores.numpy(), wanted.scores.numpy(), rtol=1e-4)
    batcher.stop()


def test_while_one_loads_others_get_the_old_model(model: Path, other: Path, monkeypatch) -> None:
    monkeypatch.setattr("oarlock.studio.current.LOOK", 0.0)
    current = CurrentModel(model)
    old, loading, go_on = current.need(), threading.Event(), threading.Event()

    def slow(*arguments, **options):
        loading.set()
        go_on.wait(20)
        return load(*arguments, **options)

    monkeypatch.setattr("oarlock.studio.current.load", slow)
    other.replace(model)
    with ThreadPoolExecutor(1) as pool:
        new = pool.submit(current.need)
        assert loading.wait(20)
        assert current.need() is old
        go_on.set()
        assert isinstance(new.result(20), Loaded) and new.result() is not old


def test_a_model_that_goes_away_is_told(client: TestClient, model: Path, monkeypatch) -> None:
    monkeypatch.setattr("oarlock.studio.current.LOOK", 0.0)
    model.unlink()
    assert client.get("/health").status_code == 503
    answer = client.post("/predict", files=form(MIXED))
    assert answer.status_code == 409 and "there is no model shop.oar yet" in answer.json()["error"]
