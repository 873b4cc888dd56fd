"""The server, killed at random moments while it learns: the model is the old one or the new one, and what was named
is kept, or learned."""

import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from oarlock import load
from oarlock.modelfile.paths import model_paths
from studio.conftest import form, photos_of

pytestmark = pytest.mark.slow
PATIENCE = 300  # seconds, on a machine with much other work
START = (
    "from oarlock import session; session.CHECKPOINT_SECONDS = 0.0\n"
    "from oarlock.cli import main; main()"
)  # fmt: skip


class Server:
    def __init__(self, model: Path) -> None:
        command = [sys.executable, "-c", START, "studio", str(model), "--port", "0", "--threads", "1"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.client = httpx.Client(base_url=self.process.stdout.readline().split()[-1], timeout=PATIENCE)

    def post(self, path: str, **content: object) -> dict:
        answer = self.client.post(f"/api{path}", json=content)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def overview(self) -> dict:
        return self.client.get("/api/overview").json()

    def finish(self) -> dict:
        while True:
            overview = self.overview()
            if all(job["state"] != "running" for job in overview["jobs"]):
                return overview
            time.sleep(0.05)

    def end(self, how: signal.Signals) -> None:
        self.process.send_signal(how)
        self.process.wait(PATIENCE)
        self.client.close()
        assert self.process.stdout is not None
        self.process.stdout.close()


def send(server: Server, *names: str) -> None:
    for name in names:
        server.client.post("/api/photos", files=form(photos_of(name, 12)), data={"group": name})


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, float]:
    """A folder with a model of two classes, and how many seconds the next lesson takes."""
    model = tmp_path_factory.mktemp("begun") / "shop.oar"
    server = Server(model)
    send(server, "ant", "bee")
    groups = [group["id"] for group in server.overview()["groups"]]
    server.post("/learn", groups=groups, settings={"method": "oar", "trunk": "vit_pico", "epochs": 2, "memory": 16})
    assert server.finish()["jobs"][-1]["state"] == "done"
    copy = model.read_bytes()
    send(server, "fox", "owl")
    began = time.monotonic()
    server.post("/learn", groups=[group["id"] for group in server.overview()["groups"]], settings={})
    assert server.finish()["jobs"][-1]["state"] == "done"
    seconds = time.monotonic() - began
    server.end(signal.SIGINT)
    kept = model.with_name("kept.oar")
    kept.write_bytes(copy)
    return kept, seconds


@pytest.mark.parametrize("moment", range(10))
def test_killed_while_it_learns(moment: int, begun: tuple[Path, float], tmp_path: Path) -> None:
    kept, seconds = begun
    model, chance = tmp_path / "shop.oar", random.Random(moment)
    model.write_bytes(kept.read_bytes())
    server = Server(model)
    send(server, "fox", "owl")
    groups = server.overview()["groups"]
    assert [group["name"] for group in groups] == ["fox", "owl"]
    server.post("/learn", groups=[group["id"] for group in groups], settings={})
    time.sleep(chance.uniform(0, 1.1 * seconds))
    server.end(signal.SIGKILL)

    left = load(model).classes_.tolist()
    assert left in (["ant", "bee"], ["ant", "bee", "fox", "owl"])
    server = Server(model)
    overview = server.overview()
    assert overview["sent"] == 24
    if len(left) == 2:
        assert {group["name"]: group["count"] for group in overview["groups"]} == {"fox": 12, "owl": 12}
        assert overview["interrupted"] == {"fox": 12, "owl": 12}
        server.post("/learn/go-on")
        overview = server.finish()
        assert overview["jobs"][-1]["state"] == "done", overview["jobs"]
    assert overview["groups"] == [] and overview["interrupted"] is None
    assert set(overview["reports"][0]["classes"]) == {"fox", "owl"}
    server.end(signal.SIGINT)
    assert load(model).classes_.tolist() == ["ant", "bee", "fox", "owl"]
    assert not model_paths(model).checkpoint.exists()
    assert [path.name for path in (tmp_path / "shop.oar.studio").rglob("*.tmp")] == []
    json.loads((tmp_path / "shop.oar.studio" / "board.json").read_text())
