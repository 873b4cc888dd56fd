"""The loop: what is unknown is grouped, named, taught and known; it can be corrected; nothing is lost on the way."""

import json
import os
import time
from pathlib import Path

import numpy as np
import pytest
from fastapi.testclient import TestClient

from conftest import make_task
from oarlock import Learner, load
from oarlock.errors import OarlockError
from oarlock.modelfile.paths import model_paths
from oarlock.nets.trunks import Trunk
from oarlock.studio.app import build_app
from oarlock.studio.board import Board
from oarlock.studio.jobs import Job, Jobs, Stopped
from oarlock.studio.looking import PAGE
from oarlock.studio.studio import Studio
from studio.conftest import HERE, Wait, form, photos_of, png, post


def send(client: TestClient, *names: str, count: int = 6, **said: str) -> list[str]:
    ids = []
    for name in names:
        answer = client.post("/api/photos", files=form(photos_of(name, count)), data=said)
        assert answer.status_code == 200, answer.text
        ids += [one["photo"] for one in answer.json()["photos"]]
    return ids


def group_of(overview: dict, photo: str) -> dict:
    return next(group for group in overview["groups"] if photo in group["photos"])


def test_the_loop(client: TestClient, studio: Studio, finished: Wait, model: Path) -> None:
    post(client, "/accept", accept=0.9)
    ids = send(client, "fox", "owl", "ant")
    assert client.get("/api/overview").json()["unknown"] >= 12
    post(client, "/unknowns/group", groups=2, anew=False)
    overview = finished()
    assert overview["unknown"] == 0
    fox, owl = group_of(overview, ids[0]), group_of(overview, ids[6])
    assert fox["id"] != owl["id"] and set(ids[:6]) <= set(fox["photos"])

    post(client, "/groups/rename", group=fox["id"], name=" fox ")
    post(client, "/groups/rename", group=owl["id"], name="owl")
    before = load(model).classes_.tolist()
    post(client, "/learn", groups=[fox["id"], owl["id"]], settings={})
    overview = finished()
    assert overview["jobs"][-1]["state"] == "done", overview["jobs"]
    assert load(model).classes_.tolist() == [*before, "fox", "owl"]
    assert overview["groups"] == [] and overview["interrupted"] is None

    report = overview["reports"][0]
    assert report["task"] == 2 and set(report["classes"]) == {"fox", "owl"}
    assert report["unknown_before"] >= 12 and report["known_now"] > 0.7 * report["unknown_before"]
    assert {example["label"] for example in report["examples"]} >= {"fox", "owl"}
    assert report["accuracy"]["before"] is not None and report["accuracy"]["photos"] > 0
    assert not set(ids[:12]) & set(studio.looking.unknown())
    answers = post(client, "/photos/look", photos=ids)
    assert [answers[photo]["label"] for photo in ids[:12]] == ["fox"] * 6 + ["owl"] * 6


def test_promises_are_checked_after_a_lesson(tiny_trunk: Trunk, tmp_path: Path) -> None:
    path = tmp_path / "shop.oar"
    learner = Learner("hat", trunk=tiny_trunk, epochs=1, memory=8)
    learner.learn(*make_task(["ant", "bee"], 10)).save(path)
    with Studio(path) as studio:
        client = TestClient(build_app(studio, page=True), base_url=HERE)
        send(client, "fox", group="fox")
        post(client, "/learn", groups=[1], settings={})
        assert studio.bench.jobs.latest["lesson"].finished.wait(60)
        told = [studio.overview()["reports"][0]["promise"], client.post("/api/verify").json()]
    for promise in told:
        assert promise["holds"] and [task["classes"] for task in promise["tasks"]] == [["ant", "bee"], ["fox"]]
        assert all(task["identical"] and task["compared"] > 0 for task in promise["tasks"])


def test_a_method_that_promises_nothing_says_so(client: TestClient) -> None:
    assert client.post("/api/verify").json() == {"method": "slda", "holds": True, "tasks": []}


def test_a_model_is_made_of_dropped_folders(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "new.oar"
    with Studio(path, folder) as studio:
        client = TestClient(build_app(studio, page=True), base_url=HERE)
        assert client.get("/api/overview").json()["model"] is None
        assert "there is no model" in client.post("/predict", files=form(photos_of("ant", 1))).json()["error"]
        send(client, "bee", group="bee")
        post(client, "/folder/classes", names=["ant", "fox", "nothing"])
        groups = client.get("/api/overview").json()["groups"]
        assert {group["name"]: group["count"] for group in groups} == {"bee": 6, "ant": 6, "fox": 6}
        chosen = [group["id"] for group in groups if group["name"] != "fox"]
        for wrong in ({"method": "none"}, {"colour": 1}, {"epochs": "many"}, {"trunk": 3}):
            answer = client.post("/api/learn", json={"groups": chosen, "settings": wrong})
            if answer.status_code == 200:  # only the method itself knows
                assert studio.bench.jobs.latest["lesson"].finished.wait(60)
                assert client.get("/api/overview").json()["jobs"][-1]["state"] == "failed"
        post(client, "/learn", groups=chosen, settings={"method": "slda", "trunk": "vit_pico", "seed": 3})
        assert studio.bench.jobs.latest["lesson"].finished.wait(60)
        assert sorted(client.get("/api/overview").json()["model"]["tasks"][0]) == ["ant", "bee"]
        assert load(path).seed == 3
        assert studio.overview()["reports"][0]["unknown_before"] == 0
        assert studio.looking.answers.of(studio.bench.models.need()) == {}  # there was nothing to compare with
        assert [group["name"] for group in client.get("/api/overview").json()["groups"]] == ["fox"]


# Groups


def test_groups_are_changed_as_one_likes(client: TestClient) -> None:
    one, two, three, four = send(client, "fox", count=4)
    group = post(client, "/groups/split", photos=[one, two, three])["groups"][0]["id"]
    overview = post(client, "/groups/split", photos=[three])
    other = group_of(overview, three)["id"]
    assert other != group
    overview = post(client, "/groups/move", photos=[two, four], group=other)
    assert group_of(overview, four)["photos"] == [three, two, four]
    overview = post(client, "/groups/throw", photos=[four])
    assert overview["thrown"] == [four] and group_of(overview, three)["count"] == 2
    overview = post(client, "/groups/release", photos=[four])
    assert overview["thrown"] == []
    overview = post(client, "/groups/merge", group=group, other=other)
    assert [entry["count"] for entry in overview["groups"]] == [3]
    answer = client.post("/api/groups/merge", json={"group": group, "other": group})
    assert answer.status_code == 422 and "itself" in answer.json()["error"]
    answer = client.post("/api/groups/move", json={"photos": [one], "group": 999})
    assert answer.status_code == 404
    assert post(client, "/groups/throw", photos=[one, two, three])["groups"] == []


def test_two_groups_of_one_name_are_one(client: TestClient) -> None:
    fox, owl = send(client, "fox", count=2), send(client, "owl", count=2)
    for photos in (fox, owl):
        post(client, "/groups/split", photos=photos)
    groups = client.get("/api/overview").json()["groups"]
    for group in groups:
        overview = post(client, "/groups/rename", group=group["id"], name="bird")
    assert [(group["name"], group["count"]) for group in overview["groups"]] == [("bird", 4)]
    assert post(client, "/groups/rename", group=overview["groups"][0]["id"], name="")["groups"][0]["name"] is None


def test_groups_without_a_name_can_be_sorted_anew(client: TestClient, finished: Wait) -> None:
    post(client, "/accept", accept=0.5)
    send(client, "fox", "owl")
    post(client, "/unknowns/group", groups=4, anew=False)
    kept = finished()["groups"][0]
    post(client, "/groups/rename", group=kept["id"], name="kept")
    post(client, "/unknowns/group", groups=1, anew=True)
    groups = finished()["groups"]
    assert [group["name"] for group in groups] == ["kept", None] and groups[0]["photos"] == kept["photos"]
    answer = client.post("/api/unknowns/group", json={"groups": None, "anew": False})
    assert answer.status_code == 409 and "no unknown photo" in answer.json()["error"]


def test_what_is_taken_away_is_gone(client: TestClient, studio: Studio) -> None:
    ids = send(client, "fox", count=3)
    post(client, "/groups/split", photos=ids)
    client.get(f"/api/thumbnails/{ids[0]}")
    overview = post(client, "/photos/remove", photos=ids[:2])
    assert overview["sent"] == 1 and overview["groups"][0]["photos"] == ids[2:]
    assert client.get(f"/api/thumbnails/{ids[0]}").status_code == 404
    assert [path.name for path in (studio.bench.store.root / "photos").iterdir()] == ids[2:]


# Corrections


def test_a_class_is_renamed_merged_forgotten_and_that_undone(client: TestClient, finished: Wait, model: Path) -> None:
    post(client, "/classes/rename", old="bee", new="wasp")
    overview = finished()
    assert overview["model"]["tasks"] == [["ant", "wasp", "cow"]] and overview["undo"]
    post(client, "/undo")
    overview = finished()
    assert overview["model"]["tasks"] == [["ant", "bee", "cow"]]
    post(client, "/classes/merge", one="ant", other="bee")
    assert finished()["jobs"][-1]["state"] == "done"
    assert load(model).classes_.tolist() == ["ant", "cow"]
    classes = client.get("/api/classes").json()
    assert [one["label"] for one in classes["tasks"][0]["classes"]] == ["ant", "ant", "cow"]
    assert classes["edits"][-1]["edit"] == "merge"
    post(client, "/classes/rename", old="cow", new="ant")
    assert finished()["jobs"][-1]["state"] == "failed"
    answer = client.post("/api/classes/rename", json={"old": "cow", "new": "a/b"})
    assert answer.status_code == 422


def test_forgetting_cannot_be_undone_for_nothing_is_kept(client: TestClient, finished: Wait, model: Path) -> None:
    post(client, "/classes/rename", old="bee", new="wasp")
    assert finished()["undo"]
    post(client, "/classes/forget", name="wasp")
    overview = finished()
    assert load(model).classes_.tolist() == ["ant", "cow"] and not overview["undo"]
    assert not model_paths(model).previous.exists()


def test_what_is_forgotten_is_told_nowhere_beside_the_model(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oarlock.studio.gallery.export_onnx", lambda learner, path: path.write_bytes(b"wombat"))
    with Studio(model) as studio:
        client = TestClient(build_app(studio, page=True), base_url=HERE)
        photos = send(client, "wombat", group="wombat")
        post(client, "/learn", groups=[1], settings={})
        assert studio.bench.jobs.latest["lesson"].finished.wait(60)
        assert set(studio.overview()["reports"][0]["classes"]) == {"wombat"}
        assert client.post("/api/export").status_code == 200
        post(client, "/photos/remove", photos=photos)
        post(client, "/classes/forget", name="wombat")
        assert studio.bench.jobs.latest["lesson"].finished.wait(60)
        assert studio.overview()["jobs"][-1]["state"] == "done"
    beside = [path for path in studio.bench.store.root.rglob("*") if path.is_file()]
    assert beside and all(b"wombat" not in path.read_bytes() for path in beside)


def test_more_photos_of_a_known_class(client: TestClient, finished: Wait, model: Path) -> None:
    send(client, "ant", group="ant")
    groups = client.get("/api/overview").json()["groups"]
    post(client, "/learn", groups=[group["id"] for group in groups], settings={})
    overview = finished()
    assert overview["jobs"][-1]["state"] == "done", overview["jobs"][-1]
    assert load(model).classes_.tolist() == ["ant", "bee", "cow"]
    assert [len(task) for task in overview["model"]["tasks"]] == [3, 1]
    assert client.get("/api/classes").json()["edits"][-1]["labels"] == ["ant"]


# The folder


def test_a_folder_is_shown_in_pages_and_looked_through(client: TestClient, finished: Wait) -> None:
    shown = client.get("/api/photos?where=folder&accept=0.9").json()
    assert shown["count"] == 18 and shown["photos"][0]["name"] == "ant/0.png" and shown["photos"][0]["answer"] is None
    post(client, "/folder/look")
    assert finished()["jobs"][-1]["result"] == {"photos": 18, "unreadable": 0}
    unknown = client.get("/api/photos?where=folder&show=unknown&accept=0.9").json()
    known = client.get("/api/photos?where=folder&show=known&accept=0.9").json()
    assert unknown["count"] + known["count"] == 18 and unknown["count"] >= 12
    assert {one["name"].split("/")[0] for one in unknown["photos"]} >= {"fox", "owl"}
    for wrong in ("where=disk", "show=some", "page=-1", "page=x", "accept=7", "accept=nan"):
        assert client.get(f"/api/photos?{wrong}").status_code == 422


def test_ten_thousand_photos_are_paged_and_looking_can_be_stopped(model: Path, tmp_path: Path) -> None:
    content = photos_of("ant", 1)[0][1]
    (tmp_path / "many").mkdir()
    (tmp_path / "many" / "0.png").write_bytes(content)
    for number in range(1, 10_000):
        (tmp_path / "many" / f"{number}.png").hardlink_to(tmp_path / "many" / "0.png")
    with Studio(model, tmp_path / "many") as studio:
        client = TestClient(build_app(studio, page=True), base_url=HERE)
        shown = client.get("/api/photos?where=folder&page=166").json()
        assert (shown["count"], shown["pages"], len(shown["photos"])) == (10_000, 167, 10_000 - 166 * PAGE)
        thumbnail = client.get(f"/api/thumbnails/{shown['photos'][0]['photo']}")
        assert thumbnail.headers["content-type"] == "image/jpeg" and "max-age" in thumbnail.headers["cache-control"]
        made = list((studio.bench.store.root / "thumbnails").iterdir())
        assert len(made) == 1  # of what was looked at
        stamp = made[0].stat().st_mtime_ns
        client.get(f"/api/thumbnails/{shown['photos'][0]['photo']}")
        assert made[0].stat().st_mtime_ns == stamp
        job = post(client, "/folder/look")["jobs"][-1]
        while not 0 < studio.bench.jobs.latest["look"].share < 1:
            time.sleep(0.01)
        post(client, "/jobs/stop", job=job["number"])
        assert studio.bench.jobs.latest["look"].finished.wait(30)
        overview = client.get("/api/overview").json()
        assert overview["jobs"][-1]["state"] == "stopped"
        seen = studio.looking.answers.of(studio.bench.models.need())
        assert 0 < len(seen) < 10_000
        assert client.post("/api/jobs/stop", json={"job": 99}).status_code == 404
        one = {**next(iter(seen.values())), "score": -1e9}
        studio.looking.answers.put(studio.bench.models.need(), studio.bench.there(), [one] * 10_000)
        began = time.thread_time()
        assert studio.overview()["unknown"] == 10_000
        assert time.thread_time() - began < 1


# Nothing is lost


def test_another_studio_of_the_same_model_finds_everything(model: Path, folder: Path) -> None:
    with Studio(model, folder) as studio:
        client = TestClient(build_app(studio, page=True), base_url=HERE)
        ids = send(client, "fox", count=4)
        post(client, "/groups/split", photos=ids[:3])
        post(client, "/groups/rename", group=1, name="fox")
        post(client, "/accept", accept=0.8)
        before = client.get("/api/overview").json()
        answers = post(client, "/photos/look", photos=ids)
    with Studio(model, folder) as studio:
        client = TestClient(build_app(studio, page=True), base_url=HERE)
        after = client.get("/api/overview").json()
        assert {**after, "changes": 0} == {**before, "changes": 0}
        listed = client.get("/api/photos?where=sent").json()["photos"]
        assert {one["photo"]: one["answer"] for one in listed} == answers


def stopped(*_: object) -> None:
    raise Stopped


def test_a_lesson_that_is_refused_is_none(client: TestClient, finished: Wait, studio: Studio) -> None:
    photo = photos_of("fox", 1)[0][1]
    client.post("/api/photos", files=form([("fox.png", photo)]), data={"group": "fox"})
    kept = next((studio.bench.store.root / "photos").iterdir())
    kept.write_bytes(photo[:60])  # what was a photo once
    post(client, "/learn", groups=[1], settings={})
    overview = finished()
    assert overview["jobs"][-1]["state"] == "failed" and "not a readable image" in overview["jobs"][-1]["text"]
    assert overview["interrupted"] is None and overview["groups"][0]["name"] == "fox"


def test_a_lesson_that_was_interrupted_is_offered_again(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Studio(model) as studio:
        client = TestClient(build_app(studio, page=True), base_url=HERE)
        send(client, "fox", group="fox")
        with monkeypatch.context() as patched:
            patched.setattr("oarlock.studio.lessons.teach", stopped)
            post(client, "/learn", groups=[1], settings={})
            assert studio.bench.jobs.latest["lesson"].finished.wait(20)
    with Studio(model) as studio:
        client = TestClient(build_app(studio, page=True), base_url=HERE)
        overview = client.get("/api/overview").json()
        assert overview["interrupted"] == {"fox": 6} and overview["groups"][0]["name"] == "fox"
        post(client, "/learn/go-on")
        assert studio.bench.jobs.latest["lesson"].finished.wait(20)
        assert "fox" in load(model).classes_ and client.get("/api/overview").json()["interrupted"] is None
        assert client.post("/api/learn/go-on", json={}).status_code == 409


def test_a_lesson_can_be_given_up(client: TestClient, studio: Studio, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("oarlock.studio.lessons.teach", stopped)
    send(client, "fox", group="fox")
    post(client, "/learn", groups=[1], settings={})
    assert studio.bench.jobs.latest["lesson"].finished.wait(20)
    overview = post(client, "/learn/leave")
    assert overview["interrupted"] is None and overview["groups"][0]["name"] == "fox"


def test_killed_just_after_the_model_was_written(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The board still speaks of the lesson, and the model knows it."""
    with Studio(model) as studio:
        client = TestClient(build_app(studio, page=True), base_url=HERE)
        send(client, "fox", group="fox")
        send(client, "owl", group="owl")
        monkeypatch.setattr(studio.lessons, "_conclude", lambda report: None)
        post(client, "/learn", groups=[1], settings={})
        assert studio.bench.jobs.latest["lesson"].finished.wait(20)
        assert studio.bench.board.lesson is not None and "fox" in load(model).classes_
    with Studio(model) as studio:
        board = studio.bench.board
        assert board.lesson is None and [group.name for group in board.groups] == ["owl"]
        assert board.reports[-1]["classes"] == {"fox": 6}


def test_a_board_that_is_damaged_is_named(model: Path) -> None:
    with Studio(model) as studio:
        studio.set_accept(0.5)
        file = studio.bench.store.root / "board.json"
    good = json.loads(file.read_text())
    for wrong in (
        {**good, "thrown": ["../x"]},
        {**good, "format": 2},
        {**good, "accept": "all"},
        [],
        {**good, "x": 1},
    ):
        file.write_text(json.dumps(wrong))
        with pytest.raises(OarlockError, match=r"board\.json"), Studio(model):
            pass
    file.write_text("{")
    with pytest.raises(OarlockError, match=r"board\.json is damaged"), Studio(model):
        pass


def test_answers_that_are_damaged_are_made_anew(model: Path) -> None:
    with Studio(model) as studio:
        (studio.bench.store.root / "answers.json").write_text('{"model": "x"}')
    with Studio(model) as studio:
        assert studio.looking.answers.of(studio.bench.models.need()) == {}


# Looking closer


def test_the_gallery_shows_photos_and_confusions(client: TestClient, studio: Studio) -> None:
    classes = client.get("/api/classes").json()
    cards = classes["tasks"][0]["classes"]
    assert [card["label"] for card in cards] == ["ant", "bee", "cow"]
    learner = studio.bench.models.need().learner
    known = learner.calibration
    answers = learner.predict(known.images.numpy().transpose(0, 2, 3, 1))
    names = learner.classes_[known.labels.numpy()]
    for card in cards:
        own = names == card["label"]
        assert card["confusions"]["photos"] == own.sum() == card["calibration"] > 0
        assert card["confusions"]["right"] == (answers[own] == card["label"]).sum()
        picture = client.get(f"/api/class-photos/{classes['version']}/{card['photos'][0].replace('-', '/')}")
        assert picture.headers["content-type"] == "image/png"
    row = int(cards[0]["photos"][0].split("-")[1])
    assert picture.status_code == 200
    first = client.get(f"/api/class-photos/{classes['version']}/calibration/{row}").content
    assert first == png(np.ascontiguousarray(known.images[row].permute(1, 2, 0).numpy()))
    assert client.get(f"/api/class-photos/other/calibration/{row}").status_code == 404


def test_the_model_can_be_taken_away(client: TestClient, model: Path) -> None:
    answer = client.get("/api/model.oar")
    assert answer.content == model.read_bytes() and 'filename="shop.oar"' in answer.headers["content-disposition"]


def test_the_model_can_be_taken_away_as_a_graph(
    client: TestClient, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is in it is tested in tests/modelfile/test_export.py."""
    monkeypatch.setattr("oarlock.studio.gallery.export_onnx", lambda learner, path: path.write_bytes(b"graph"))
    assert client.get("/api/model.onnx").status_code == 404
    assert client.post("/api/export").json() == {}
    assert client.get("/api/model.onnx").content == b"graph"
    later = model.stat().st_mtime_ns + 10**10
    os.utime(model, ns=(later, later))
    assert "export it first" in client.get("/api/model.onnx").json()["error"]  # of the model as it was


def test_events_tell_what_goes_on(studio: Studio) -> None:
    """One event at once, another when something has changed."""
    app = build_app(studio, page=True)
    with TestClient(app, base_url=HERE) as client:
        studio.bench.jobs.start("look", "Looking", lambda job: job.report(0.5, "half"))
        studio.bench.jobs.latest["look"].finished.wait(20)
        told = first_event(app)
        assert told["jobs"][0]["title"] == "Looking" and told["changes"] == studio.bench.changes
        assert client.get("/health").status_code == 200


def first_event(app) -> dict:
    """TestClient waits for the end of an answer, which events have not."""
    import asyncio

    async def ask() -> dict:
        sent: asyncio.Queue = asyncio.Queue()
        scope = {
            "type": "http", "method": "GET", "path": "/api/events", "raw_path": b"/api/events", "query_string": b"",
            "headers": [(b"host", b"localhost")], "http_version": "1.1", "scheme": "http", "root_path": "",
            "server": ("localhost", 80), "client": ("127.0.0.1", 1), "asgi": {"version": "3.0"},
        }  # fmt: skip
        body = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> dict:
            if body:
                return body.pop()
            await asyncio.sleep(3600)
            return {"type": "http.disconnect"}

        task = asyncio.create_task(app(scope, receive, sent.put))
        try:
            while True:
                message = await asyncio.wait_for(sent.get(), 20)
                if message["type"] == "http.response.body" and message["body"].startswith(b"data: "):
                    return json.loads(message["body"].removeprefix(b"data: "))
        finally:
            task.cancel()

    return asyncio.run(ask())


def test_a_job_that_breaks_says_so(capsys: pytest.CaptureFixture) -> None:
    jobs = Jobs()
    job = jobs.start("look", "Looking", lambda job: {}["nothing"])
    assert job.finished.wait(20) and job.state == "failed" and "KeyError" in job.text
    assert "Traceback" in capsys.readouterr().err


def test_a_board_that_was_written_is_read_again() -> None:
    board = Board(names={"u" + "a" * 24: "x.png"})
    board.add(["u" + "a" * 24], "fox")
    board.lesson = {"classes": {"fox": ["u" + "a" * 24]}, "groups": [1], "before": None, "settings": {"epochs": 1}}
    assert Board.from_json(json.loads(json.dumps(board.to_json()))) == board


def test_progress_never_goes_beyond_its_ends() -> None:
    job = Job(1, "look", "Looking")
    job.report(3.0, "far")
    assert job.to_json()["share"] == 1.0


def test_many_sent_photos_are_shown_in_pages(client: TestClient, studio: Studio) -> None:
    send(client, "ant", count=PAGE + 5)
    last = client.get("/api/photos?where=sent&page=1").json()
    assert (last["count"], last["pages"], len(last["photos"])) == (PAGE + 5, 2, 5)


def test_photos_of_a_folder_are_learned_where_they_are(
    client: TestClient, studio: Studio, finished: Wait, model
) -> None:
    post(client, "/folder/classes", names=["fox", "owl"])
    post(client, "/learn", groups=[1, 2], settings={})
    assert finished()["jobs"][-1]["state"] == "done"
    assert load(model).classes_.tolist()[-2:] == ["fox", "owl"]
    assert not list((studio.bench.store.root / "photos").iterdir())


def test_the_folder_is_written_nowhere(folder: Path, client: TestClient, finished: Wait) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    post(client, "/folder/look")
    finished()
    ids = [one["photo"] for one in client.get("/api/photos?where=folder").json()["photos"]]
    client.get(f"/api/thumbnails/{ids[0]}")
    post(client, "/groups/split", photos=ids[:3])
    post(client, "/photos/remove", photos=ids[:3])
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
