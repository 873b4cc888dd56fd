"""Who may not come in, what is too much, and what leads nowhere."""

import base64
import io
import json
import socket
import struct
import threading
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from oarlock.errors import OarlockError
from oarlock.studio.app import PAGE, build_app
from oarlock.studio.guard import POLICY
from oarlock.studio.refusals import LIMITS, Limits
from oarlock.studio.server import check_host
from oarlock.studio.studio import Studio
from studio.conftest import HERE, form, in_a_thread, photos_of, post

TOKEN = "a-token-of-many-letters"
PHOTO = photos_of("ant", 1)


@pytest.fixture(scope="module")
def quiet(known: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestClient]:
    """A studio that nothing is changed in."""
    model = tmp_path_factory.mktemp("quiet") / "shop.oar"
    model.write_bytes(known.read_bytes())
    with Studio(model) as studio, TestClient(build_app(studio, page=True), base_url=HERE) as client:
        yield client


def refused(answer, status: int, words: str) -> None:
    assert answer.status_code == status, answer.text
    assert words in answer.json()["error"]


# Names and pages of others


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8765", "192.168.1.9", "localhost.evil.example", "", "["]
)
def test_a_host_that_is_not_ours_gets_nothing(quiet: TestClient, host: str) -> None:
    """A name that somebody makes lead here (DNS rebinding) is told in the Host header."""
    for path in ("/", "/api/overview", "/model", "/static/studio.js"):
        refused(quiet.get(path, headers={"host": host}), 403, "no name of this server")


@pytest.mark.parametrize("host", ["localhost:8765", "127.0.0.1:8765", "[::1]:8765", "LOCALHOST", "127.0.0.2"])
def test_this_machine_is_ours(quiet: TestClient, host: str) -> None:
    assert quiet.get("/model", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "https://evil.example"},
        {"origin": "null"},
        {"origin": "http://localhost:9999"},
        {"origin": "http://localhost.evil.example"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site"},
    ],
)
def test_pages_of_other_sites_change_and_ask_nothing(client: TestClient, studio: Studio, headers: dict) -> None:
    before = studio.bench.board.to_json()
    refused(client.post("/api/accept", json={"accept": 0.5}, headers=headers), 403, "another site")
    refused(client.post("/predict", files=form(PHOTO), headers=headers), 403, "another site")
    assert studio.bench.board.to_json() == before
    if headers.get("sec-fetch-mode"):  # a picture or a script of another page
        refused(client.get("/api/overview", headers=headers), 403, "another site")


def test_our_own_page_may(client: TestClient) -> None:
    own = {"origin": HERE, "sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"}
    assert client.post("/api/accept", json={"accept": 0.9}, headers=own).status_code == 200
    followed = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=followed).status_code == 200  # a link that somebody clicks


def test_a_form_of_another_page_is_no_json(client: TestClient) -> None:
    """What a browser sends without asking first: forms and plain text."""
    text = client.post("/api/accept", content=json.dumps({"accept": 0.5}), headers={"content-type": "text/plain"})
    refused(text, 415, "send JSON")


# Tokens


@pytest.fixture
def locked(studio: Studio) -> TestClient:
    return TestClient(build_app(studio, page=True, token=TOKEN, names=["shop"]), base_url="http://shop")


def test_without_the_token_there_is_a_page_to_enter_it_and_nothing_else(locked: TestClient) -> None:
    assert "token" in locked.get("/").text and "studio.js" not in locked.get("/").text
    for path in ("/api/overview", "/model", "/metrics", "/openapi.json", "/docs", "/api/model.oar", "/staticx"):
        refused(locked.get(path), 401, "a token is needed")
    refused(locked.post("/predict", files=form(PHOTO)), 401, "a token is needed")
    assert locked.get("/health").json()["status"] == "ok"


@pytest.mark.parametrize("kind", ["Bearer {}", "Token {}", "bearer {}"])
def test_the_token_opens(locked: TestClient, kind: str) -> None:
    assert locked.get("/model", headers={"authorization": kind.format(TOKEN)}).status_code == 200


def test_basic_authentication_opens_for_label_studio(locked: TestClient) -> None:
    def asked(password: str) -> int:
        value = base64.b64encode(f"oarlock:{password}".encode()).decode()
        return locked.get("/label-studio/health", headers={"authorization": f"Basic {value}"}).status_code

    assert (asked(TOKEN), asked("other"), asked(TOKEN + "x")) == (200, 401, 401)


@pytest.mark.parametrize(
    "value", ["Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Basic %%", "Basic", "x"]
)
def test_others_do_not(locked: TestClient, value: str) -> None:
    assert locked.get("/model", headers={"authorization": value}).status_code == 401


def test_a_browser_that_entered_it_keeps_something_else(locked: TestClient) -> None:
    refused(locked.post("/enter", data={"token": "wrong"}), 401, "not the token")
    answer = locked.post("/enter", data={"token": TOKEN}, follow_redirects=False)
    cookie = answer.headers["set-cookie"]
    assert answer.status_code == 303 and TOKEN not in cookie
    assert "HttpOnly" in cookie and "samesite=strict" in cookie.lower()
    assert locked.get("/model").status_code == 200 and "studio.js" in locked.get("/").text
    locked.cookies.clear()
    locked.cookies.set("oarlock", TOKEN)
    assert locked.get("/model").status_code == 401


def test_the_token_is_compared_in_constant_time(locked: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    compared = []
    monkeypatch.setattr("hmac.compare_digest", lambda one, other: compared.append((one, other)) or one == other)
    locked.get("/model", headers={"authorization": "Bearer wrong"})
    assert compared == [(b"wrong", TOKEN.encode())]


def test_with_a_token_numbers_and_given_names_are_ours_but_no_others(locked: TestClient) -> None:
    headers = {"authorization": f"Bearer {TOKEN}"}
    assert locked.get("/model", headers=headers | {"host": "192.168.1.9:8765"}).status_code == 200
    assert locked.get("/model", headers=headers | {"host": "shop:8765"}).status_code == 200
    assert locked.get("/model", headers=headers | {"host": "evil.example"}).status_code == 403


def test_elsewhere_than_on_this_machine_a_token_is_needed() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.9", "shop.example"):
        with pytest.raises(OarlockError, match="add a --token"):
            check_host(host, None)
        check_host(host, TOKEN)
    for host in ("127.0.0.1", "::1", "localhost"):
        check_host(host, None)
    for token in ("short", "with a long \n line break in it", "ä" * 20):
        with pytest.raises(OarlockError, match="at least 16 characters"):
            check_host("127.0.0.1", token)


# Too much


def test_who_has_no_token_cannot_send_much(locked: TestClient) -> None:
    for path in ("/enter", "/", "/static/studio.js"):
        refused(locked.post(path, content=b"token=" + b"x" * 5000), 413, "more than 4096 bytes")
    endless = (b"x" * 1000 for _ in range(100))
    refused(locked.post("/enter", content=endless), 413, "more than 4096 bytes")


def test_ten_thousand_files_in_one_request(client: TestClient, studio: Studio) -> None:
    many = [("images", (f"{number}.png", b"x", "image/png")) for number in range(10_000)]
    for path in ("/predict", "/api/photos", "/unknowns/group"):
        refused(client.post(path, files=many), 413, f"more than {LIMITS.photos} photos")
    refused(client.post("/predict", json={"images": ["eA=="] * 10_000}), 413, f"more than {LIMITS.photos} photos")
    assert studio.bench.board.names == {} and not list((studio.bench.store.root / "photos").iterdir())


def test_a_request_that_is_too_long_is_not_read(studio: Studio) -> None:
    client = TestClient(build_app(studio, page=True, limits=Limits(body=10_000)), base_url=HERE)
    refused(client.post("/predict", content=b"x" * 10_001), 413, "send fewer at a time")
    said = client.post("/predict", content=b"x", headers={"content-length": "99999999999999"})
    refused(said, 413, "send fewer at a time")
    taken = 0

    def endless() -> Iterator[bytes]:
        nonlocal taken
        for _ in range(10_000):
            taken += 1
            yield b"x" * 1000

    json_kind = {"content-type": "application/json"}
    refused(client.post("/predict", content=endless(), headers=json_kind), 413, "send fewer at a time")


def test_a_photo_that_is_too_large(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    large = PHOTO[0][1] + b"\0" * LIMITS.photo
    refused(client.post("/predict", files=form([("large.png", large)])), 413, "larger than 32 MB")


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def pixel_bomb(width: int, height: int) -> bytes:
    """A PNG of a few thousand bytes that says it has so many pixels."""
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(b"\0" * 10_000_000)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


@pytest.mark.parametrize("sides", [(30_000, 30_000), (9_000, 9_000), (2**31 - 1, 2**31 - 1)])
def test_pixel_bombs_are_not_unpacked(quiet: TestClient, sides: tuple[int, int]) -> None:
    bomb = [("bomb.png", pixel_bomb(*sides))]
    assert len(bomb[0][1]) < 20_000
    for path in ("/predict", "/api/photos"):
        refused(quiet.post(path, files=form(bomb)), 413, "million pixels")
    assert quiet.get("/api/overview").json()["sent"] == 0


def test_zip_bombs_and_other_things_are_no_photos(client: TestClient) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", b"\0" * 20_000_000)
    for content in (packed.getvalue(), b"", b"GIF89a", b"<svg onload=alert(1)>", b"%!PS-Adobe", b"\xff\xd8\xff"):
        answer = client.post("/predict", files=form([("a.png", content)]))
        assert answer.status_code in (415, 422) and answer.json()["error"]
    gzipped = client.post("/predict", content=b"x", headers={"content-encoding": "gzip"})
    refused(gzipped, 415, "packed requests are not unpacked")


def test_one_bad_photo_among_good_ones_is_told_by_name(client: TestClient) -> None:
    photos = [*PHOTO, ("bad.png", PHOTO[0][1][:60]), ("worse.txt", b"text")]
    answer = client.post("/api/photos", files=form(photos)).json()
    assert [one["name"] for one in answer["photos"]] == [PHOTO[0][0]]
    assert {one["name"]: one["status"] for one in answer["refused"]} == {"bad.png": 422, "worse.txt": 415}
    refused(client.post("/predict", files=form(photos[1:2])), 422, "bad.png: not a readable image")


@pytest.mark.parametrize(
    ("content", "kind", "status"),
    [
        (b"{", "application/json", 422),
        (b"[]", "application/json", 422),
        (b'{"images": 1}', "application/json", 422),
        (b'{"images": ["*"]}', "application/json", 422),
        (b'{"images": []}', "application/json", 422),
        (b'{"images": [{"data": "eA==", "path": "/etc/passwd"}]}', "application/json", 422),
        (b'{"images": ["eA=="], "accept": 2}', "application/json", 422),
        (b'{"images": ["eA=="], "accept": NaN}', "application/json", 422),
        (b'{"images": ["eA=="], "top": true}', "application/json", 422),
        (b"\xff", "application/json", 422),
        (b"[" * 100_000, "application/json", 422),
        (b"x", "multipart/form-data", 422),
        (b"x", "multipart/form-data; boundary=y", 422),
        (b"x", "text/html", 415),
        (b"x", "", 415),
    ],
)
def test_nonsense_is_refused_in_a_sentence(quiet: TestClient, content: bytes, kind: str, status: int) -> None:
    answer = quiet.post("/predict", content=content, headers={"content-type": kind})
    assert answer.status_code == status and len(answer.json()["error"]) > 10


# Places on the disk

TRAVERSALS = [
    "../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "/etc/passwd",
    "u" + "/" * 24,
    "%2e%2e/board.json",
    "u\0",
]


@pytest.mark.parametrize("path", TRAVERSALS)
@pytest.mark.parametrize(
    "below", ["/static/", "/api/thumbnails/", "/api/class-photos/x/", "/api/class-photos/x/memory/"]
)
def test_nothing_on_the_disk_has_an_address(quiet: TestClient, path: str, below: str) -> None:
    answer = quiet.get(below + path.replace("\0", "%00"))
    assert answer.status_code in (404, 405, 422) and "root:" not in answer.text


def test_names_of_files_lead_nowhere(client: TestClient, studio: Studio, tmp_path: Path) -> None:
    before = {path for path in tmp_path.rglob("*") if "shop.oar.studio" not in path.parts}
    names = ["../../evil.png", "/tmp/evil.png", "..\\..\\evil.png", "a\0b.png", "x" * 900 + ".png", "."]
    for number, name in enumerate(names):
        content = photos_of("ant", len(names), seed=9)[number][1]
        answer = client.post(
            "/predict", json={"images": [{"name": name, "data": base64.b64encode(content).decode()}]}
        )
        assert answer.status_code == 200 and "/" not in answer.json()["answers"][0]["name"]
        assert client.post("/api/photos", files=form([(name, content)])).status_code == 200
    kept = {path.name for path in (studio.bench.store.root / "photos").iterdir()}
    assert kept == set(studio.bench.board.names) and len(kept) == len(names)
    assert {path for path in tmp_path.rglob("*") if "shop.oar.studio" not in path.parts} == before


@pytest.mark.parametrize(
    "name", ["../evil", "..", ".", "a/b", ".hidden", "", "  ", "a\nb", "\x1b[31m", "x" * 300, "\u202e"]
)
def test_names_of_classes_lead_nowhere(client: TestClient, studio: Studio, name: str) -> None:
    answer = client.post("/api/photos", files=form(PHOTO), data={"group": name or " "})
    refused(answer, 422, "cannot be the name of a class")
    photo = client.post("/api/photos", files=form(PHOTO)).json()["photos"][0]["photo"]
    client.post("/api/groups/split", json={"photos": [photo]})
    group = studio.bench.board.groups[0].id
    answer = client.post("/api/groups/rename", json={"group": group, "name": name})
    assert answer.status_code in (200, 422)
    assert studio.bench.board.groups[0].name is None


def test_a_link_out_of_the_folder_is_none_of_its_photos(folder: Path, model: Path, tmp_path: Path) -> None:
    (tmp_path / "secret.png").write_bytes(photos_of("owl", 1, seed=3)[0][1])
    (folder / "ant" / "link.png").symlink_to(tmp_path / "secret.png")
    (folder / "ant" / "inside.png").symlink_to(folder / "ant" / "0.png")
    with Studio(model, folder) as studio:
        names = {studio.bench.name(photo) for photo in studio.bench.there()}
    assert "ant/inside.png" in names and "ant/link.png" not in names


def test_photos_of_others_cannot_be_put_into_groups(client: TestClient) -> None:
    for path in ("split", "throw", "release"):
        refused(client.post(f"/api/groups/{path}", json={"photos": ["u" + "0" * 24]}), 404, "there is no photo")
    refused(client.post("/api/groups/split", json={"photos": ["../x"]}), 422, "of the form")
    refused(client.post("/api/photos/remove", json={"photos": ["f" + "0" * 24]}), 404, "there is no photo")


# What is shown

HTML = "<img src=x onerror=alert(1)>"
DANGEROUS = ("innerHTML", "outerHTML", "insertAdjacentHTML", "eval(", "document.write")


def test_html_in_names_stays_text(client: TestClient, studio: Studio) -> None:
    """The page is made of elements and text, never of text that becomes elements; the rest is JSON that says so."""
    scripts = [path.name for path in PAGE.glob("*.js")]
    assert "core.js" in scripts
    for name in scripts:
        script = client.get(f"/static/{name}").text
        assert all(word not in script for word in DANGEROUS)
    answer = client.post("/api/photos", files=form([(f"{HTML}.png", PHOTO[0][1])]), data={"group": HTML})
    assert answer.status_code == 200
    overview = client.get("/api/overview")
    assert overview.headers["content-type"] == "application/json"
    assert [group["name"] for group in overview.json()["groups"]] == [HTML]


def test_every_answer_says_what_a_browser_may_do_with_it(client: TestClient, locked: TestClient) -> None:
    answers = [client.get(path) for path in ("/", "/api/overview", "/static/studio.css", "/nowhere", "/docs")]
    answers += [client.get("/", headers={"host": "evil.example"}), locked.get("/model"), client.post("/predict")]
    for answer in answers:
        assert answer.headers["content-security-policy"] == POLICY
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
    assert "unsafe" not in POLICY and "default-src 'none'" in POLICY and "http" not in POLICY


def test_no_file_of_the_page_names_another_server(client: TestClient) -> None:
    for path in PAGE.iterdir():
        text = path.read_text().replace("http://www.w3.org/2000/svg", "")
        assert "http://" not in text and "https://" not in text and "//cdn" not in text, path
        assert path.stat().st_size < 50_000


def test_no_path_of_the_server_is_told(client: TestClient, studio: Studio, folder: Path, tmp_path: Path) -> None:
    (folder / "fox" / "broken.png").write_text("no image")
    studio.bench.store.folder.look_again()
    photos = sorted(studio.bench.there())
    for path, content in (("/photos/look", {"photos": photos}), ("/accept", {"accept": 0.9})):
        assert str(tmp_path) not in client.post(f"/api{path}", json=content).text
    for path in ("/api/overview", "/api/classes", "/model", "/api/photos?where=folder"):
        assert str(tmp_path) not in client.get(path).text


# One at a time


def test_a_second_lesson_is_refused_and_reads_go_on(client: TestClient, studio: Studio, monkeypatch) -> None:
    started, go_on = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        started.set()
        go_on.wait(20)
        raise OarlockError("that was enough")

    monkeypatch.setattr("oarlock.studio.lessons.teach", slow)
    client.post("/api/photos", files=form(photos_of("fox")), data={"group": "fox"})
    group = studio.bench.board.groups[0].id
    post(client, "/learn", groups=[group], settings={})
    assert started.wait(20)
    try:
        again = client.post("/api/learn", json={"groups": [group], "settings": {}})
        refused(again, 409, "still going on")
        refused(client.post("/api/classes/rename", json={"old": "ant", "new": "x"}), 409, "a lesson is going on")
        refused(client.post("/api/learn/leave", json={}), 409, "still going on")
        assert client.post("/predict", files=form(PHOTO)).status_code == 200
        assert client.get("/api/overview").json()["jobs"][-1]["state"] == "running"
    finally:
        go_on.set()
    assert studio.bench.jobs.latest["lesson"].finished.wait(20)
    overview = client.get("/api/overview").json()
    assert overview["interrupted"] is None and overview["groups"][0]["name"] == "fox"


def test_a_second_studio_of_the_same_model_is_refused(studio: Studio, model: Path) -> None:
    with pytest.raises(OarlockError, match="another studio or server"), Studio(model):
        pass


# Clients that take their time


@pytest.fixture
def address(studio: Studio, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr("oarlock.studio.server.HURRY", 0.3)
    with in_a_thread(build_app(studio, page=True, limits=Limits(silence=0.3, patience=2.0))) as address:
        yield address


def said(address: tuple[str, int], *parts: bytes, pause: float = 0.0) -> bytes:
    with socket.create_connection(address, 20) as client:
        for part in parts:
            client.sendall(part)
            time.sleep(pause)
        answer = b""
        while more := client.recv(65536):
            answer += more
    return answer


HEAD = b"POST /predict HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 1000\r\n\r\n"


def test_a_request_that_never_ends_is_ended(address: tuple[str, int]) -> None:
    answer = said(address, HEAD, b'{"images"')
    assert answer.startswith(b"HTTP/1.1 408") and b"did not come to its end" in answer


def test_a_drop_now_and_then_does_not_keep_it_open(address: tuple[str, int]) -> None:
    with pytest.raises(OSError):
        for _ in range(3):  # however the last drops cross with the answer
            answer = said(address, HEAD, *[b"x"] * 30, pause=0.15)
            assert answer.startswith(b"HTTP/1.1 408")
            raise ConnectionError


@pytest.mark.parametrize("begun", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"])
def test_a_head_that_comes_in_drops_is_not_waited_for(address: tuple[str, int], begun: bytes) -> None:
    """Neither of the first request of a connection nor of one that follows an answer."""
    with socket.create_connection(address, 20) as client:
        client.sendall(begun)
        began = time.monotonic()
        with pytest.raises(OSError):
            while time.monotonic() - began < 15:
                client.sendall(b"GET /health?" if time.monotonic() - began < 0.1 else b"x")
                time.sleep(0.1)
    assert time.monotonic() - began < 15


def test_who_says_nothing_is_not_waited_for_and_keeps_nobody_waiting(address: tuple[str, int]) -> None:
    silent = [socket.create_connection(address, 20) for _ in range(20)]
    began = time.monotonic()
    assert said(address, b"GET /model HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n").startswith(
        b"HTTP/1.1 200"
    )
    assert all(client.recv(10) == b"" for client in silent)
    assert time.monotonic() - began < 15
    for client in silent:
        client.close()
