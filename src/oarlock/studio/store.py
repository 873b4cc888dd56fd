"""The folder beside a model: the board, photos that were sent, thumbnails. Photos have ids, and are never asked for
by paths."""

import hashlib
import io
import re
import shutil
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from oarlock.data.folders import find_images
from oarlock.data.pictures import thumbnail
from oarlock.errors import OarlockError
from oarlock.files import make_directory, read_json, replacing, write_json
from oarlock.locks import locked
from oarlock.modelfile.paths import model_paths
from oarlock.schema import of_file
from oarlock.studio.board import Board, class_name
from oarlock.studio.refusals import Refusal

SIDE = 256  # pixels of the long side of a thumbnail
RECENT = 2.0  # seconds for which a folder is taken to be as it was
_ID = 24  # hexadecimal digits of a sha256
_SENT = re.compile(r"u[0-9a-f]{24}")


class Folder:
    """Hold the photos of a folder that the studio was given, by id. It is looked through once; `look_again` does so
    anew. A link that leads out of the folder is none of its photos."""

    def __init__(self, root: Path) -> None:
        if not root.is_dir():
            raise OarlockError(f"{root}: not a folder; give a folder of photos")
        self.root = root.resolve()
        self.paths: dict[str, Path] = {}
        self.looked = -RECENT
        self.look_again()

    def look_again(self) -> None:
        """Find the photos that there are now."""
        files, _ = find_images(self.root)
        inside = (path for path in files if not path.is_symlink() or path.resolve().is_relative_to(self.root))
        self.paths = {self.id(self.name(path)): path for path in inside}
        self.looked = time.monotonic()

    def find(self, name: str) -> str | None:
        """Return the photo of a name, which may have come into the folder since; None if there is none."""
        photo = self.id(name)
        if photo not in self.paths and time.monotonic() - self.looked > RECENT:
            self.look_again()
        return photo if photo in self.paths else None

    @staticmethod
    def id(name: str) -> str:
        return photo_id("f", name.encode(errors="surrogateescape"))

    def name(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()

    def classes(self) -> dict[str, list[str]]:
        """Return the photos of each of its class folders."""
        found: dict[str, list[str]] = {}
        for photo, path in self.paths.items():
            inside = path.relative_to(self.root).parts
            if len(inside) > 1:
                found.setdefault(inside[0], []).append(photo)
        return found


def photo_id(kind: str, content: bytes) -> str:
    return kind + hashlib.sha256(content).hexdigest()[:_ID]


class Store:
    """Keep what the studio of a model keeps, in the folder MODEL.studio."""

    def __init__(self, model: Path, folder: Path | None = None) -> None:
        self.model = model_paths(model).model
        self.root = self.model.parent / f"{self.model.name}.studio"
        self.lesson, self.graph = self.root / "lesson", self.root / "model.onnx"
        self.folder = None if folder is None else Folder(folder)

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep a second studio of the same model out."""
        for name in ("photos", "thumbnails"):
            make_directory(self.root / name)
        with locked(self.root / ".lock", f"another studio or server is at work on {self.model}: stop it first"):
            yield

    def load(self) -> Board:
        file = self.root / "board.json"
        if not file.exists():
            return Board()
        with of_file(file):
            return Board.from_json(read_json(file))

    def save(self, board: Board) -> None:
        write_json(self.root / "board.json", board.to_json())

    def read(self, name: str) -> Any:
        """Return what a JSON file of the studio holds, None where there is none."""
        file = self.root / name
        return read_json(file) if file.exists() else None

    def write(self, name: str, content: Any) -> None:
        write_json(self.root / name, content)

    def remove(self, name: str) -> None:
        (self.root / name).unlink(missing_ok=True)

    # -- photos --------------------------------------------------------------------------------------------

    def keep_photo(self, content: bytes) -> str:
        """Keep a photo that was sent; the same photo twice is one."""
        photo = photo_id("u", content)
        path = self.root / "photos" / photo
        if not path.exists():
            with replacing(path) as file:
                file.write(content)
        return photo

    def path(self, photo: str) -> Path:
        """Return where a photo is; there are no others than those that were sent or are in the folder."""
        path = None
        if photo.startswith("f") and self.folder is not None:
            path = self.folder.paths.get(photo)
        elif _SENT.fullmatch(photo):
            path = self.root / "photos" / photo
        if path is None or not path.is_file():
            raise Refusal(404, "there is no such photo here (any more)")
        return path

    def thumbnail(self, photo: str) -> Path:
        """Return a small copy of a photo, made when it is first asked for."""
        path = self.path(photo)
        small = self.root / "thumbnails" / f"{photo}.jpg"
        if small.is_file() and small.stat().st_mtime_ns >= path.stat().st_mtime_ns:
            return small
        drawn = io.BytesIO()
        thumbnail(path, path.name, SIDE).save(drawn, "JPEG", quality=85)
        with replacing(small) as file:
            file.write(drawn.getvalue())
        return small

    def remove_photos(self, photos: list[str]) -> None:
        """Remove photos that were sent, and all thumbnails of them; a folder's own photos stay where they are."""
        for photo in photos:
            (self.root / "thumbnails" / f"{photo}.jpg").unlink(missing_ok=True)
            if photo.startswith("u"):
                (self.root / "photos" / photo).unlink(missing_ok=True)

    # -- lessons -------------------------------------------------------------------------------------------

    def lay_out(self, classes: Mapping[str, list[str]]) -> Path:
        """Make the folder of a lesson: links to photos, in a folder for each class. It need not outlive anything, for
        the board says what is in it."""
        self.clear_lesson()
        for name, photos in classes.items():
            make_directory(self.lesson / class_name(name))
            for photo in photos:  # called like a photo; what it is its content says
                (self.lesson / name / f"{photo}.jpg").symlink_to(self.path(photo).resolve())
        return self.lesson

    def clear_lesson(self) -> None:
        with suppress(FileNotFoundError):
            shutil.rmtree(self.lesson)
