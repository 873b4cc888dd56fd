"""A studio of a small model, asked through its API without a server."""

import io
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn
from fastapi.testclient import TestClient
from PIL import Image
from starlette.types import ASGIApp

from conftest import make_images, make_task
from oarlock import Learner
from oarlock.nets.trunks import Trunk
from oarlock.studio.app import build_app
from oarlock.studio.server import Impatient, open_socket
from oarlock.studio.studio import Studio

HERE = "http://localhost"


def number_of(name: str) -> int:
    return sum(map(ord, name))


def png(image: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(image).save(file, "PNG")
    return file.getvalue()


def photos_of(name: str, count: int = 6, seed: int = 5) -> list[tuple[str, bytes]]:
    """Photos of a class, whose pattern depends on its name."""
    images = make_images(number_of(name), count, seed=seed)
    return [(f"{name} {number}.png", png(image)) for number, image in enumerate(images)]


def form(photos: list[tuple[str, bytes]]) -> list[tuple[str, tuple[str, bytes, str]]]:
    return [("images", (name, content, "image/png")) for name, content in photos]


def write_photos(folder: Path, *names: str, count: int = 6) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True, exist_ok=True)
        for number, (_, content) in enumerate(photos_of(name, count)):
            (folder / name / f"{number}.png").write_bytes(content)
    return folder


@pytest.fixture(scope="session")
def known(tiny_trunk: Trunk, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of three classes that says of most others that they are unknown; not to be changed."""
    path = tmp_path_factory.mktemp("models") / "shop.oar"
    learner = Learner("slda", trunk=tiny_trunk, calibration=0.5)
    learner.learn(*make_task(["ant", "bee", "cow"], 40)).save(path)
    return path


@pytest.fixture
def model(known: Path, tmp_path: Path) -> Path:
    path = tmp_path / "models" / "shop.oar"
    path.parent.mkdir()
    path.write_bytes(known.read_bytes())
    return path


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_photos(tmp_path / "photos", "ant", "fox", "owl")


@pytest.fixture
def studio(model: Path, folder: Path) -> Iterator[Studio]:
    with Studio(model, folder) as opened:
        yield opened


@pytest.fixture
def client(studio: Studio) -> Iterator[TestClient]:
    with TestClient(build_app(studio, page=True), base_url=HERE) as opened:
        yield opened


@contextmanager
def in_a_thread(app: ASGIApp) -> Iterator[tuple[str, int]]:
    """Serve an application; the address."""
    listening = open_socket("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(app, http=Impatient, lifespan="off", log_level="critical"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield listening.getsockname()
    server.should_exit = True
    thread.join(20)
    listening.close()


Wait = Callable[[], dict[str, Any]]


@pytest.fixture
def finished(client: TestClient) -> Wait:
    """Wait until nothing is going on; return what the page shows then."""

    def wait() -> dict[str, Any]:
        for _ in range(600):
            overview = client.get("/api/overview").json()
            if all(job["state"] != "running" for job in overview["jobs"]):
                return overview
            time.sleep(0.02)
        raise AssertionError("it goes on and on")

    return wait


def post(client: TestClient, path: str, **content: Any) -> dict[str, Any]:
    answer = client.post(f"/api{path}", json=content)
    assert answer.status_code == 200, answer.text
    return answer.json()
