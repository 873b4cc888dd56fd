"""Take the pictures of docs/how-to/studio.md: the bundled sample's photos, learned, tried, named and learned again.

python tools/studio_screenshots.py docs/images [--chromium /usr/bin/chromium]
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from playwright.sync_api import Page, expect, sync_playwright

from oarlock.data.sources import open_source

KNOWN, NEW = ("automobile", "ship", "truck"), ("frog", "horse")
PHOTOS = 60  # of a known class
COLOURS = 160  # of a PNG, which is smaller then
PUT_RIGHT = """async names => {
  const get = async path => (await fetch(`/api/${path}`)).json();
  const post = async (path, body) => fetch(`/api/${path}`,
    { method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
  const kind = Object.fromEntries((await get("photos")).photos.map(one => [one.photo, one.name.split("-")[0]]));
  const found = {};
  for (const name of names) {
    const ours = group => group.photos.filter(photo => kind[photo] === name);
    const free = (await get("overview")).groups.filter(group => !Object.values(found).includes(group.id));
    const most = free.reduce((one, other) => ours(other).length > ours(one).length ? other : one);
    found[name] = most.id;
    await post("groups/move", { photos: free.flatMap(ours), group: most.id });
    const others = most.photos.filter(photo => kind[photo] !== name);
    if (others.length) await post("groups/split", { photos: others });
  }
  return found;
}"""  # what a person does by hand: every photo of a kind into one group


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--chromium", default=shutil.which("chromium"))
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        here = Path(folder)
        write_photos(here)
        command = [sys.executable, "-c", "from oarlock.cli import main; main()", "studio", str(here / "shop.oar")]
        server = subprocess.Popen(
            [*command, "--port", "0", "--photos", str(here / "photos")], stdout=subprocess.PIPE, text=True
        )
        browser = playwright.chromium.launch(executable_path=given.chromium, args=["--no-sandbox"])
        try:
            assert server.stdout is not None
            address = server.stdout.readline().split()[-1]
            page = browser.new_page(viewport={"width": 1280, "height": 860})
            page.set_default_timeout(600_000)
            expect.set_options(timeout=600_000)
            page.goto(address)
            walk(page, here, given.out)
            phone = browser.new_page(viewport={"width": 390, "height": 780}, color_scheme="dark")
            phones = []
            for tab in ("try", "unknowns", "classes"):
                phone.goto(f"{address}/#{tab}")
                phone.wait_for_timeout(4000)
                phones.append(here / f"{tab}.png")
                phone.screenshot(path=phones[-1])
            beside(phones, given.out / "studio-phone.png")
        finally:
            browser.close()
            server.terminate()
            server.wait()


def write_photos(folder: Path) -> None:
    source = open_source("sample")
    for name in (*KNOWN, *NEW):
        where = folder / ("photos" if name in KNOWN else "new") / name
        where.mkdir(parents=True)
        for number, image in enumerate(source.train.of([name]).images[:PHOTOS]):
            Image.fromarray(image).resize((160, 160), Image.Resampling.BICUBIC).save(
                where / f"{name}-{number:02}.jpg"
            )


def walk(page: Page, here: Path, out: Path) -> None:
    page.get_by_role("button", name="Take these").click()
    page.locator(".group").nth(2).wait_for()
    page.get_by_text("How it learns").click()
    page.get_by_label("Epochs").fill("2")
    page.get_by_label("Epochs").press("Tab")
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(3000)
    shot(page, out / "studio-start.png", whole=True)
    page.get_by_role("button", name="Make the model").click()
    page.get_by_role("tab", name="Try").wait_for()
    expect(page.locator(".job")).to_have_count(0)
    new = [here / "new" / name / f"{name}-{number:02}.jpg" for name in NEW for number in range(14)]
    known = [here / "photos" / name / f"{name}-{number:02}.jpg" for name in KNOWN for number in range(4)]
    page.locator("input[type=file]").first.set_input_files([*known[:6], *new[::-1], *known[6:]])
    expect(page.locator("#photos .photo")).to_have_count(len(new) + len(known))
    page.locator("#accept").fill("0.8")
    page.wait_for_timeout(9000)
    page.evaluate("document.querySelector('.slider').scrollIntoView()")
    page.evaluate("scrollBy(0, -100)")
    page.wait_for_timeout(1000)
    shot(page, out / "studio-try.png")
    page.get_by_role("tab", name="Unknowns").click()
    page.get_by_label("Number of groups").fill("3")
    page.get_by_role("button", name="Sort into groups").click()
    page.locator("[data-group]").nth(2).wait_for()
    for name, group in page.evaluate(PUT_RIGHT, NEW).items():
        field = page.locator(f"[data-group='{group}'] .name")
        field.fill(name)
        field.press("Enter")
        expect(page.locator(".sticky")).to_contain_text(name)
    page.locator("details.changed summary").click()
    page.wait_for_timeout(3000)
    shot(page, out / "studio-unknowns.png")
    page.get_by_role("button", name="Learn 2 named groups").click()
    page.get_by_text("former unknowns are now known").wait_for()
    page.wait_for_timeout(9000)
    shot(page, out / "studio-learned.png")
    page.get_by_role("tab", name="Classes").click()
    page.locator(".class").nth(4).wait_for()
    page.wait_for_timeout(2000)
    shot(page, out / "studio-classes.png")


def shot(page: Page, path: Path, *, whole: bool = False) -> None:
    page.evaluate("document.activeElement.blur()")
    page.screenshot(path=path, full_page=whole)
    small(Image.open(path), path)


def small(picture: Image.Image, path: Path) -> None:
    picture.convert("RGB").quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)


def beside(paths: list[Path], out: Path) -> None:
    pictures = [Image.open(path) for path in paths]
    width = sum(picture.width for picture in pictures) + 16 * (len(pictures) - 1)
    sheet, left = Image.new("RGB", (width, pictures[0].height), "white"), 0
    for picture in pictures:
        sheet.paste(picture, (left, 0))
        left += picture.width + 16
    small(sheet, out)


if __name__ == "__main__":
    main()
