"""What Label Studio sends, in its own form, and what it expects to get."""

import base64
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from oarlock import load
from oarlock.errors import OarlockError
from oarlock.studio.label_studio import Config, read_config
from oarlock.studio.studio import Studio
from studio.conftest import Wait, photos_of

CONFIG = """
<View>
  <Header value="What is it?"/>
  <Image name="photo" value="$image" zoom="true"/>
  <Choices name="kind" toName="photo" choice="single">
    <Choice value="ant"/><Choice value="fox"/>
  </Choices>
</View>
"""


def task(number: int, image: str) -> dict:
    """A task as Label Studio has them, with all that is of no interest here."""
    return {
        "id": number,
        "data": {"image": image, "note": "x"},
        "meta": {},
        "created_at": "2026-01-01T10:00:00.000000Z",
        "updated_at": "2026-01-01T10:00:00.000000Z",
        "is_labeled": False,
        "overlap": 1,
        "project": 7,
        "file_upload": None,
        "annotations": [],
        "predictions": [],
    }


def asked(client: TestClient, *images: str, config: str = CONFIG) -> dict:
    content = {
        "tasks": [task(number, image) for number, image in enumerate(images)],
        "project": "7.1767261600",
        "label_config": config,
        "params": {"login": None, "password": None, "context": None},
    }
    answer = client.post("/label-studio/predict", json=content)
    assert answer.status_code == 200, answer.text
    return answer.json()


def annotated(task: dict, *choices: str, action: str = "ANNOTATION_CREATED") -> dict:
    result = {
        "id": "x",
        "type": "choices",
        "value": {"choices": list(choices)},
        "from_name": "kind",
        "to_name": "photo",
    }
    return {
        "action": action,
        "annotation": {
            "id": 3,
            "result": [result],
            "was_cancelled": False,
            "ground_truth": False,
            "task": task["id"],
        },
        "project": {"id": 7, "title": "Animals", "label_config": CONFIG},
        "task": task,
    }


def test_it_is_there(client: TestClient) -> None:
    assert client.get("/label-studio/health").json()["status"] == "UP"
    content = {"project": "7.1", "schema": CONFIG, "hostname": "http://localhost:8080", "access_token": "x"}
    version = client.post("/label-studio/setup", json=content).json()["model_version"]
    assert version == client.get("/model").json()["version"]
    wrong = client.post("/label-studio/setup", json=content | {"schema": "<View><Text name='a' value='$b'/></View>"})
    assert wrong.status_code == 422 and "no <Choices>" in wrong.json()["error"]


@pytest.mark.parametrize(
    "named",
    [
        "ant/0.png",
        "/data/local-files/?d=ant/0.png",
        "/data/local-files/?d=ant%2F0.png",
        "/data/ant/0.png",
        "/ant/0.png",
    ],
)
def test_photos_of_the_folder_are_answered(client: TestClient, named: str) -> None:
    found = asked(client, named, "/data/local-files/?d=fox/1.png")
    known, unknown = found["results"]
    assert known["result"][0] == {
        "from_name": "kind",
        "to_name": "photo",
        "type": "choices",
        "value": {"choices": ["ant"]},
        "score": known["score"],
    }
    assert 0 < known["score"] <= 1 and known["model_version"] == found["model_version"]
    assert unknown["result"] == [] and unknown["score"] == 0.0


def test_photos_that_came_after_the_server_are_found(
    client: TestClient, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("oarlock.studio.store.RECENT", 0.0)
    (folder / "upload" / "7").mkdir(parents=True)
    (folder / "upload" / "7" / "a-0.png").write_bytes(photos_of("ant", 1)[0][1])
    assert asked(client, "/data/upload/7/a-0.png")["results"][0]["result"][0]["value"] == {"choices": ["ant"]}


def test_photos_inside_a_task_are_answered(client: TestClient) -> None:
    content = base64.b64encode(photos_of("ant", 1)[0][1]).decode()
    found = asked(client, f"data:image/png;base64,{content}", "data:image/png;base64,eA==", "data:,")
    assert [len(one["result"]) for one in found["results"]] == [1, 0, 0]


@pytest.mark.parametrize(
    "named",
    [
        "https://evil.example/ant/0.png",
        "//evil.example/ant/0.png",
        "file:///etc/passwd",
        "/data/local-files/?d=../models/shop.oar",
        "/data/local-files/?d=/etc/passwd",
        "../photos/ant/0.png",
        "s3://bucket/ant/0.png",
        "",
    ],
)
def test_nothing_is_fetched_and_nothing_else_is_read(client: TestClient, named: str) -> None:
    assert asked(client, named)["results"][0]["result"] == []


def test_what_people_annotate_is_taught(client: TestClient, studio: Studio, finished: Wait, model: Path) -> None:
    for number in range(6):
        answer = client.post("/label-studio/webhook", json=annotated(task(number, f"fox/{number}.png"), "fox"))
        assert answer.status_code == 201 and answer.json() == {"taken": 1}
    again = annotated(task(0, "fox/0.png"), "fox", action="ANNOTATION_UPDATED")
    assert client.post("/label-studio/webhook", json=again).json() == {"taken": 1}
    (group,) = studio.bench.board.groups
    assert (group.name, len(group.photos)) == ("fox", 6)
    answer = client.post("/label-studio/webhook", json={"action": "START_TRAINING", "project": {"id": 7}})
    assert answer.status_code == 201 and answer.json()["job"] == 1
    assert finished()["jobs"][-1]["state"] == "done"
    assert load(model).classes_.tolist()[-1] == "fox"
    assert asked(client, "fox/0.png")["results"][0]["result"][0]["value"] == {"choices": ["fox"]}


def test_what_says_nothing_changes_nothing(client: TestClient, studio: Studio) -> None:
    strange = [
        {"action": "PROJECT_UPDATED", "project": {"id": 7}},
        {"action": "ANNOTATION_CREATED"},
        {"action": "ANNOTATION_CREATED", "task": 1, "annotation": "x"},
        annotated(task(1, "fox/1.png"), "fox", "owl"),
        annotated(task(1, "nowhere.png"), "fox"),
        annotated(task(1, "fox/1.png")),
    ]
    for content in strange:
        assert client.post("/label-studio/webhook", json=content).status_code == 201
    assert studio.bench.board.groups == []
    wrong = client.post("/label-studio/webhook", json=annotated(task(1, "fox/1.png"), "../fox"))
    assert wrong.status_code == 422
    empty = client.post("/label-studio/webhook", json={"action": "START_TRAINING"})
    assert empty.status_code == 422 and "no group" in empty.json()["error"]


def test_the_interface_is_read_and_its_entities_are_not() -> None:
    assert read_config(CONFIG) == Config("kind", "photo", "image")
    bomb = "<!DOCTYPE x [<!ENTITY a 'aaaaaaaaaa'><!ENTITY b '&a;&a;&a;&a;'>]><View>&b;</View>"
    for text in (bomb, "<View>", "", "<View><Choices name='a' toName='b'/></View>"):
        with pytest.raises(OarlockError, match="labelling interface"):
            read_config(text)
