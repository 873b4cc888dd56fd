"""The page in Chromium: the whole loop on the bundled sample, by mouse and by keyboard, wide and narrow; nothing is
lost when the page is loaded again or the server is killed."""

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from oarlock import load
from oarlock.data.sources import open_source
from oarlock.studio.app import build_app
from oarlock.studio.studio import Studio
from studio.conftest import in_a_thread

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
try:
    from playwright.sync_api import Browser, Page, expect, sync_playwright
except ImportError:
    CHROMIUM = None

pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("browser"),  # tests that go on from each other
    pytest.mark.skipif(CHROMIUM is None, reason="there is no Chromium here, or no playwright to drive it"),
]
KNOWN, NEW = ("airplane", "frog"), ("horse", "cat")
START = (
    "from oarlock.studio import gallery, looking\n"
    "import time\n"
    "look = looking.Looking._answered\n"
    "looking.Looking._answered = lambda *asked: time.sleep(0.05) or look(*asked)\n"  # so that it can be stopped, and
    "looking.TOGETHER = 1\n"  # after each photo
    "gallery.export_onnx = lambda learner, path: path.write_bytes(b'graph')\n"  # takes long, and is tested elsewhere
    "from oarlock.cli import main; main()"
)


class Server:
    """A studio in a process of its own."""

    def __init__(self, model: Path, photos: Path) -> None:
        self.command = [sys.executable, "-c", START, "studio", str(model)]
        self.command += ["--photos", str(photos), "--threads", "1"]
        self.port = 0

    def start(self) -> None:
        """Begin to answer, at the address of before if there was one."""
        command = [*self.command, "--port", str(self.port)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ)
        assert self.process.stdout is not None
        self.address = self.process.stdout.readline().split()[-1]
        self.port = int(self.address.rpartition(":")[2])

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        self.process.send_signal(how)
        self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Photos of four classes, larger than they are, as from a camera."""
    folder, source = tmp_path_factory.mktemp("photos"), open_source("sample").train.at_most(60)
    for name in (*KNOWN, *NEW):
        (folder / name).mkdir()
        for number, image in enumerate(source.of([name]).images):
            Image.fromarray(image).resize((64, 64)).save(folder / name / f"{number}.png")
    return folder


@pytest.fixture(scope="module")
def server(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    known = tmp_path_factory.mktemp("known")
    for name in KNOWN:
        shutil.copytree(photos / name, known / name)
    server = Server(tmp_path_factory.mktemp("models") / "shop.oar", known)
    server.start()
    yield server
    server.stop()


@pytest.fixture(scope="module")
def browser() -> Iterator["Browser"]:
    expect.set_options(timeout=30_000)  # on a busy machine
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def page(browser: "Browser", server: Server) -> Iterator["Page"]:
    """One page for all tests of this file, which go on from each other; it asks nobody but its server."""
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    page.set_default_timeout(30_000)
    wrong: list[str] = []
    page.on("pageerror", lambda problem: wrong.append(str(problem)))
    page.on("request", lambda asked: asked.url.startswith(server.address) or wrong.append(asked.url))
    page.on("console", lambda said: wrong.append(said.text) if "Content Security Policy" in said.text else None)
    page.goto(server.address)
    yield page
    assert wrong == []


def go(page: "Page", tab: str) -> None:
    page.get_by_role("tab", name=tab).click()
    expect(page.get_by_role("tab", name=tab)).to_have_attribute("aria-selected", "true")


def files(photos: Path, *names: str, count: int = 12) -> list[Path]:
    return [photos / name / f"{number}.png" for name in names for number in range(count)]


def drop(page: "Page", selector: str, paths: list[Path]) -> None:
    """Drop files as a person does from a window of files."""
    contents = [[path.name, list(path.read_bytes())] for path in paths]
    transfer = page.evaluate_handle(
        """contents => {
          const transfer = new DataTransfer();
          for (const [name, bytes] of contents)
            transfer.items.add(new File([new Uint8Array(bytes)], name, { type: "image/png" }));
          return transfer;
        }""",
        contents,
    )
    page.dispatch_event(selector, "drop", {"dataTransfer": transfer})


def test_a_model_is_made_of_class_folders(page: "Page", server: Server, photos: Path, tmp_path: Path) -> None:
    expect(page.get_by_role("heading")).to_have_text("Make shop.oar")
    expect(page.get_by_role("tab")).to_have_count(0)
    drop(page, ".drop", files(photos, "frog", count=1))
    expect(page.get_by_role("alert")).to_contain_text("These photos are in no folder")
    page.get_by_role("alert").get_by_label("Close").click()
    page.get_by_label("frog (60 photos)").uncheck()
    page.get_by_role("button", name="Take these").click()
    page.get_by_text("How it learns").click()
    (tmp_path / "frog").mkdir()
    for number in range(30, 50):
        shutil.copy(photos / "frog" / f"{number}.png", tmp_path / "frog")
    page.locator("input[webkitdirectory]").set_input_files(tmp_path / "frog")
    expect(page.get_by_label("Name of the class")).to_have_count(2)
    page.get_by_label("Method").select_option("slda")  # what was open still is
    page.get_by_label("Trunk").select_option("vit_pico")
    page.get_by_role("button", name="Make the model of 2 classes").click()
    expect(page.get_by_role("tab", name="Try")).to_be_visible()
    expect(page.locator("#file")).to_have_text("shop.oar · 2 classes")


def test_dropped_photos_are_answered_and_the_slider_says_what_is_rejected(page: "Page", photos: Path) -> None:
    expect(page.locator("#photos .photo")).to_have_count(20)  # from which it was made
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("#photos")).to_have_text("No photos yet.")
    drop(page, ".drop", files(photos, *KNOWN, *NEW))
    expect(page.locator("#photos .photo")).to_have_count(48)
    expect(page.locator("#photos .top")).to_have_count(48)  # all of them are answered
    tally = page.locator("#tally")
    page.locator("#accept").fill("1")
    expect(tally).to_contain_text("known")
    all_accepted = tally.inner_text()
    page.locator("#accept").fill("0.5")
    expect(tally).not_to_have_text(all_accepted)  # at once, and without the server
    known, unknown = (int(number) for number in re.findall(r"\d+", tally.inner_text()))
    assert known + unknown == 48 and unknown > int(all_accepted.split()[2])
    expect(page.locator("#photos .photo.unknown")).to_have_count(unknown)
    expect(page.get_by_role("tab", name="Unknowns")).to_have_text(f"Unknowns{unknown}")  # as the server counts


def test_what_is_no_photo_is_a_sentence_on_the_page(page: "Page", tmp_path: Path) -> None:
    (tmp_path / "note.png").write_text("text")
    page.locator("input[type=file]").first.set_input_files([tmp_path / "note.png"])
    expect(page.get_by_role("alert")).to_contain_text("Note.png: not a photo; accepted are JPEG, PNG")
    page.get_by_role("alert").get_by_label("Close").first.click()
    expect(page.get_by_role("alert")).to_be_empty()
    (tmp_path / "note.txt").write_text("text")
    page.locator("input[type=file]").first.set_input_files([tmp_path / "note.txt"])
    expect(page.get_by_role("alert")).to_contain_text("There is no photo among these.")
    page.get_by_role("alert").get_by_label("Close").first.click()


def test_who_uses_the_keyboard_stays_where_he_is(page: "Page") -> None:
    slider = page.locator("#accept")
    slider.focus()
    for expected in ("50.5 %", "51.0 %", "51.5 %"):
        with page.expect_response("**/api/accept"):
            page.keyboard.press("ArrowRight")
        expect(page.locator(".slider output")).to_have_text(expected)
        expect(slider).to_be_focused()
    page.get_by_role("button", name="Unknown", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("button", name="Unknown", exact=True)).to_have_attribute("aria-pressed", "true")
    expect(page.get_by_role("button", name="Unknown", exact=True)).to_be_focused()
    page.get_by_role("button", name="All", exact=True).click()


def test_photos_can_be_pasted(page: "Page", photos: Path) -> None:
    before = page.locator("#photos .photo").count()
    page.evaluate(
        """bytes => {
          const transfer = new DataTransfer();
          transfer.items.add(new File([new Uint8Array(bytes)], "pasted.png", { type: "image/png" }));
          dispatchEvent(new ClipboardEvent("paste", { clipboardData: transfer }));
        }""",
        list((photos / "horse" / "20.png").read_bytes()),
    )
    expect(page.locator("#photos .photo")).to_have_count(before + 1)
    expect(page.get_by_alt_text("pasted.png")).to_be_visible()


def test_unknown_photos_are_grouped_moved_and_named(page: "Page") -> None:
    go(page, "Unknowns")
    page.get_by_label("Number of groups").fill("2")
    page.get_by_role("button", name="Sort into groups").click()
    expect(page.locator("[data-group]")).to_have_count(2)
    groups = page.locator("[data-group]")
    first, second = groups.nth(0), groups.nth(1)
    counts = [group.locator(".thumb").count() for group in (first, second)]
    first.locator(".thumb").first.drag_to(second)
    expect(second.locator(".thumb")).to_have_count(counts[1] + 1)
    first.locator(".thumb").nth(0).click()
    first.locator(".thumb").nth(1).click()
    expect(page.get_by_text("2 photos chosen")).to_be_visible()
    page.get_by_role("button", name="New group").click()
    expect(page.locator("[data-group]")).to_have_count(3)
    page.locator("[data-group]").nth(2).get_by_role("button", name="Throw away").click()
    expect(page.get_by_text("Thrown away: 2 photos")).to_be_visible()
    name(page, 0, "horse")
    name(page, 1, "<b>cat")
    expect(page.get_by_role("button", name="Learn 2 named groups")).to_be_enabled()
    assert page.locator(".groups b").count() == 0  # a name stays a name
    name(page, 1, "cat")


def name(page: "Page", group: int, text: str) -> None:
    field = page.locator("[data-group] .name").nth(group)
    field.fill(text)
    field.press("Enter")
    expect(page.locator("[data-group] .name").nth(group)).to_have_value(text)
    expect(page.locator(".sticky").first).to_contain_text(text)


def test_a_page_that_is_loaded_again_and_a_server_that_is_killed_lose_nothing(page: "Page", server: Server) -> None:
    page.reload()
    assert wait_for_names(page) == ["horse", "cat"]
    server.stop(signal.SIGKILL)
    expect(page.get_by_role("alert")).to_contain_text("does not answer any more")
    server.start()
    page.reload()
    assert wait_for_names(page) == ["horse", "cat"]
    expect(page.get_by_text("Thrown away: 2 photos")).to_be_visible()
    expect(page.get_by_role("alert")).to_be_empty()


def wait_for_names(page: "Page") -> list[str]:
    expect(page.locator("[data-group]").first).to_be_visible()
    return [field.input_value() for field in page.locator("[data-group] .name").all()]


def test_named_groups_are_learned_and_known(page: "Page", server: Server) -> None:
    page.get_by_role("button", name="Learn 2 named groups").click()
    report = page.locator(".changed").filter(has_text="former unknowns are now known")
    expect(report).to_contain_text("Learned: cat, horse")
    expect(report.locator("img").first).to_be_visible()
    expect(page.locator("#file")).to_have_text("shop.oar · 4 classes")
    expect(page.locator("[data-group]")).to_have_count(0)
    go(page, "Try")
    expect(page.locator("#photos .label", has_text="horse").first).to_be_visible()
    model = load(server.command[4])
    assert model.classes_.tolist() == ["airplane", "frog", "cat", "horse"]


def test_a_class_is_corrected_by_keyboard(page: "Page", server: Server) -> None:
    page.get_by_role("tab", name="Try").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Classes")).to_be_focused()
    card = page.locator("[data-class=horse]")
    expect(card).to_contain_text("calibration photos")
    card.get_by_role("button", name="Rename").focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    page.keyboard.type("pony")
    page.keyboard.press("Enter")
    expect(page.locator("[data-class=pony]")).to_be_visible()
    assert load(server.command[4]).classes_.tolist()[-1] == "pony"
    page.locator("[data-class=pony]").get_by_role("button", name="Rename").click()
    page.keyboard.type("frog")
    page.keyboard.press("Enter")
    expect(page.locator(".job.failed")).to_contain_text("frog")
    page.locator(".job.failed").get_by_label("Close").click()


def test_more_photos_of_a_class_wait_to_be_learned(page: "Page", photos: Path) -> None:
    go(page, "Classes")
    card = page.locator("[data-class=pony]")
    card.locator("input[type=file]").set_input_files([photos / "horse" / f"{number}.png" for number in range(12, 20)])
    expect(page.get_by_role("tab", name="Unknowns")).to_have_attribute("aria-selected", "true")
    expect(page.get_by_text("8 photos, more of a known class")).to_be_visible()
    page.get_by_role("button", name="Learn 1 named group").click()
    expect(page.locator(".changed").first).to_contain_text("Learned: pony")
    expect(page.locator("#file")).to_have_text("shop.oar · 4 classes")


def test_the_history_tells_it_and_takes_it_back(page: "Page", server: Server) -> None:
    go(page, "History")
    expect(page.locator(".lessons")).to_contain_text("Lesson 3")
    expect(page.locator(".lessons")).to_contain_text("horse was renamed pony")
    page.get_by_role("button", name="Verify").click()
    expect(page.locator("#history")).to_contain_text("slda promises nothing about earlier tasks")
    with page.expect_download() as download:
        page.get_by_text("Download .oar").click()
    assert Path(download.value.path()).read_bytes() == Path(server.command[4]).read_bytes()
    with page.expect_download() as download:
        page.get_by_role("button", name="Export ONNX").click()
    assert Path(download.value.path()).read_bytes() == b"graph"
    page.get_by_role("button", name="Undo the last change").click()
    page.get_by_role("dialog").get_by_role("button", name="Undo").click()
    expect(page.locator(".lessons")).not_to_contain_text("Lesson 3")
    assert len(load(server.command[4]).tasks_) == 2


def test_the_folder_is_looked_through(page: "Page") -> None:
    go(page, "Try")
    page.get_by_role("button", name="Look through all").click()
    expect(page.locator(".job progress")).to_be_visible()
    page.locator(".job").get_by_role("button", name="Stop").click()
    expect(page.locator(".job.stopped")).to_contain_text("stopped")
    page.get_by_role("button", name="Look through all").click()
    page.get_by_role("button", name="Show", exact=True).click()
    expect(page.locator("#photos .photo")).to_have_count(60)
    expect(page.locator("#pager")).to_contain_text("page 1 of 2, 120 photos")
    page.get_by_role("button", name="Later").click()
    expect(page.locator("#pager")).to_contain_text("page 2 of 2")
    expect(page.locator("#photos .photo .label", has_text="frog").first).to_be_visible()


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_on_a_phone_nothing_is_wider_than_it(browser: "Browser", server: Server, scheme: Any) -> None:
    phone = browser.new_page(viewport={"width": 390, "height": 844}, color_scheme=scheme, has_touch=True)
    for tab in ("try", "unknowns", "classes", "history"):
        phone.goto(f"{server.address}/#{tab}")
        expect(phone.locator(f"a[href='#{tab}']")).to_have_attribute("aria-selected", "true")
        expect(phone.locator(".card").first).to_be_visible()
        assert phone.evaluate("document.documentElement.scrollWidth") == 390
    background = phone.evaluate("getComputedStyle(document.body).backgroundColor")
    phone.goto(f"{server.address}/docs")
    expect(phone.get_by_text("POST /predict", exact=True)).to_be_visible()
    phone.close()
    dark = sum(int(part) for part in background.removeprefix("rgb(").rstrip(")").split(",")) < 200
    assert dark == (scheme == "dark")


def test_a_token_is_asked_for(browser: "Browser", tmp_path: Path) -> None:
    token = "a-token-of-many-letters"
    with Studio(tmp_path / "shop.oar") as studio, in_a_thread(build_app(studio, page=True, token=token)) as (_, port):
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{port}")
        page.get_by_label("The token").fill(token)
        page.get_by_role("button", name="Enter").click()
        expect(page.get_by_role("heading")).to_have_text("Make shop.oar")
        page.close()
        studio.bench.closing.set()
