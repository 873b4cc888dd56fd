"""Hooks of mkdocs.yml. Pages link to files beside docs/ as a code host needs it (`../src/…`, `../CONTRIBUTING.md`);
for the site these files become part of it, and the links are made to lead there."""

import os
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security-policy.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "benchmarks.md",
}
LOGO = "src/oarlock/studio/page/oarlock.svg"
SOURCES = {place: path for path, place in PAGES.items()}
LINK = re.compile(r"(?<=\]\()([^)#\s:]+)(?=[#)])")
HOME = "---\nhide: [navigation]\n---\n\n"
LISTING = "---\nsearch:\n  exclude: true\n---\n\n# `{path}`\n\n{content}\n"


def source_of(place: str) -> str:
    """Return which file of the repository a page of the site is made of."""
    return SOURCES.get(place, f"docs/{place}")


def place_of(path: str) -> str:
    """Return where in the site a file or folder of the repository is."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    shown = (ROOT / path).is_dir() or path.endswith(".py")
    return PAGES.get(path, f"files/{path}" + ".md" * shown)


def target(link: str, source: str) -> str:
    """Return the file of the repository that a link in another one leads to."""
    return os.path.normpath(PurePosixPath(source).parent / link).replace(os.sep, "/")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages beside docs/, and what is linked to and not in docs/."""
    pages = [source_of(file.src_uri) for file in files.documentation_pages()]
    files.append(File.generated(config, "images/oarlock.svg", abs_src_path=str(ROOT / LOGO)))
    for path, place in PAGES.items():
        content = HOME * (place == "index.md") + (ROOT / path).read_text(encoding="utf-8")
        files.append(File.generated(config, place, content=content))
    for file in (file for path in linked_beside([*pages, *PAGES]) for file in made_of(path, config)):
        if file.src_uri not in files.src_uris:  # a file of a folder may be linked by itself, too
            files.append(file)
    return files


def linked_beside(pages: list[str]) -> list[str]:
    """Return what these pages link to that is in the repository, and neither in docs/ nor a page of the site."""
    links = ((page, link) for page in pages for link in LINK.findall((ROOT / page).read_text(encoding="utf-8")))
    paths = {target(link, page) for page, link in links}
    return sorted(path for path in paths - PAGES.keys() if not path.startswith("docs/") and (ROOT / path).exists())


def made_of(path: str, config: MkDocsConfig) -> Iterator[File]:
    """Yield a page that shows a Python file, a page that lists a folder and copies of what is in it, or a copy."""
    found, place = ROOT / path, place_of(path)
    if found.is_dir():
        inside = sorted(file.relative_to(ROOT).as_posix() for file in found.rglob("*.*"))
        names = "\n".join(f"- [{name}]({link_between(place, f'files/{name}')})" for name in inside)
        yield File.generated(config, place, content=LISTING.format(path=path, content=names))
        yield from (copy(name, config) for name in inside)
    elif path.endswith(".py"):
        code = f"```python\n{found.read_text(encoding='utf-8')}```"
        yield File.generated(config, place, content=LISTING.format(path=path, content=code))
    else:
        yield copy(path, config)


def copy(path: str, config: MkDocsConfig) -> File:
    return File.generated(config, f"files/{path}", abs_src_path=str(ROOT / path))


def link_between(here: str, there: str) -> str:
    return os.path.relpath(there, PurePosixPath(here).parent).replace(os.sep, "/")


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Make links lead to where the site has what they lead to in the repository."""
    here = page.file.src_uri

    def there(link: re.Match[str]) -> str:
        path = target(link[0], source_of(here))
        return link_between(here, place_of(path)) if (ROOT / path).exists() else link[0]

    return LINK.sub(there, markdown)
