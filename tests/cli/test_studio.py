"""`oarlock studio` and `oarlock serve`: what is refused before anything is served, and what is printed."""

import importlib.util
import socket
import threading
import urllib.request
from contextlib import nullcontext
from pathlib import Path

import pytest

from conftest import Command, make_task
from oarlock import Learner
from oarlock.nets.trunks import Trunk


@pytest.fixture
def model(tiny_trunk: Trunk, here: Path) -> Path:
    Learner("slda", trunk=tiny_trunk).learn(*make_task(["ant", "bee"], 10)).save(here / "shop.oar")
    return here / "shop.oar"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--host", "0.0.0.0"], "add a --token"),
        (["--token", "short"], "at least 16 characters"),
        (["--photos", "nowhere"], "nowhere: not a folder"),
        (["--host", "256.0.0.1", "--token", "a" * 20], "cannot be listened at"),
    ],
)
@pytest.mark.parametrize("command", ["studio", "serve"])
def test_what_cannot_be_served_is_refused(
    command: str, options: list[str], words: str, oarlock: Command, model: Path, capsys: pytest.CaptureFixture
) -> None:
    assert oarlock(command, model, "--port", 0, *options) == 2
    assert words in capsys.readouterr().err


def test_a_port_that_is_taken_a_folder_and_a_file_that_is_no_model_are_named(
    oarlock: Command, model: Path, here: Path, capsys: pytest.CaptureFixture
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert oarlock("serve", model, "--port", taken.getsockname()[1]) == 2
    assert "choose another --port" in capsys.readouterr().err
    assert oarlock("serve", here, "--port", 0) == 2
    assert "is a folder" in capsys.readouterr().err
    (here / "note.oar").write_text("text")
    assert oarlock("studio", here / "note.oar", "--port", 0) == 2
    assert "not an Oarlock model file" in capsys.readouterr().err


def test_what_is_missing_is_said(oarlock: Command, model: Path, monkeypatch, capsys: pytest.CaptureFixture) -> None:
    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "fastapi" else found(name))
    assert oarlock("studio", model) == 2
    assert "pip install 'oarlock[studio]'" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["studio", "serve"])
def test_it_serves_until_it_is_stopped(
    command: str, oarlock: Command, model: Path, monkeypatch, capsys: pytest.CaptureFixture
) -> None:
    """In this process, in a thread that asks it and stops it."""
    import uvicorn

    from oarlock.studio import server as serving

    seen: list[str] = []

    def ask(server: uvicorn.Server, address: str) -> None:
        while not server.started:
            threading.Event().wait(0.01)
        seen.extend(urllib.request.urlopen(f"{address}{path}").read().decode() for path in ("/", "/health"))
        server.handle_exit(2, None)

    class Asked(serving.Server):
        def run(self, sockets: list[socket.socket] | None = None) -> None:
            assert sockets
            threading.Thread(target=ask, args=(self, serving.address_of(sockets[0]))).start()
            self.capture_signals = lambda: nullcontext()
            super().run(sockets)

    monkeypatch.setattr(serving, "Server", Asked)
    assert oarlock(command, model, "--port", 0, "--token", "a-token-of-many-letters") == 0
    assert "Enter" in seen[0] and '"status":"ok"' in seen[1]
    out = capsys.readouterr().out
    assert "http://127.0.0.1:" in out and "whoever knows the token" in out
