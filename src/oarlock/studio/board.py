"""Unknown photos in groups that a person names: what the page shows, changes, and finds again after a restart."""

from dataclasses import asdict, dataclass, field
from typing import Any

from oarlock.schema import integer, list_of, mapping, matching, maybe, number, plain, record, text
from oarlock.studio.refusals import Refusal

LONGEST_NAME = 200  # bytes of a class's name, which has to be the name of a folder, too
PHOTO = matching(r"[uf][0-9a-f]{24}")
PHOTOS = list_of(PHOTO)
GROUP = record({"id": integer(1), "name": maybe(text(LONGEST_NAME)), "photos": PHOTOS}, others=False)
LESSON = record(
    {
        "classes": mapping(PHOTOS),
        "groups": list_of(integer(1)),
        "before": maybe(text(100)),
        "settings": mapping(plain),
    }
)
BOARD = record(
    {
        "format": integer(1, 1),
        "accept": number(1e-6, 1),
        "names": mapping(text()),
        "groups": list_of(GROUP),
        "thrown": PHOTOS,
        "learned": PHOTOS,
        "next": integer(1),
        "lesson": maybe(LESSON),
        "reports": list_of(mapping(plain), most=10_000),
    },
    others=False,
)


@dataclass
class Group:
    """Hold photos that show the same, and what it is called once somebody has said so."""

    id: int
    name: str | None
    photos: list[str]


@dataclass
class Board:
    """Hold all that is kept beside a model: groups, names of photos, the lesson that is being learned, reports.

    >>> board = Board()
    >>> group = board.add(["u" + "0" * 24, "u" + "1" * 24])
    >>> other = board.split(["u" + "1" * 24])
    >>> board.rename(other.id, " apple ")
    >>> [(group.name, len(group.photos)) for group in Board.from_json(board.to_json()).groups]
    [(None, 1), ('apple', 1)]
    """

    accept: float = 0.95
    names: dict[str, str] = field(default_factory=dict)  # of photos that were sent
    groups: list[Group] = field(default_factory=list)
    thrown: list[str] = field(default_factory=list)
    learned: list[str] = field(default_factory=list)  # in lessons, so that none of them waits for one
    next: int = 1
    lesson: dict[str, Any] | None = None
    reports: list[dict[str, Any]] = field(default_factory=list)  # what each lesson came to, the latest last

    def to_json(self) -> dict[str, Any]:
        return {"format": 1, **asdict(self)}

    @classmethod
    def from_json(cls, content: Any) -> "Board":
        found = BOARD(content, "")
        del found["format"]
        groups = [Group(**group) for group in found.pop("groups")]
        return cls(groups=groups, **found)

    def group(self, number: int) -> Group:
        """Return a group by its number."""
        for group in self.groups:
            if group.id == number:
                return group
        raise Refusal(404, f"there is no group {number} any more")

    def grouped(self) -> set[str]:
        """Return the photos that need no group: they have one, were thrown away, or were learned."""
        return {photo for group in self.groups for photo in group.photos}.union(self.thrown, self.learned)

    def add(self, photos: list[str], name: str | None = None) -> Group:
        """Make a group of photos, which leave those they were in; a name that a group has adds them to that group."""
        name = None if name is None else class_name(name)
        self._take_out(photos)
        found = next((group for group in self.groups if name is not None and group.name == name), None)
        if found is None:
            found = Group(self.next, name, [])
            self.next += 1
            self.groups.append(found)
        found.photos += dict.fromkeys(photos)
        self._drop_empty()
        return found

    def rename(self, number: int, name: str | None) -> None:
        """Call a group by the name of a class, or by none again; two groups of one name become one."""
        group = self.group(number)
        group.name = class_name(name) if name else None
        for other in self.groups:
            if group.name is not None and other is not group and other.name == group.name:
                self.merge(other.id, number)
                return

    def merge(self, number: int, other: int) -> None:
        """Put the photos of another group into one."""
        into, gone = self.group(number), self.group(other)
        if into is gone:
            raise Refusal(422, "a group cannot be merged with itself: choose another one")
        into.photos += gone.photos
        into.name = into.name or gone.name
        self.groups.remove(gone)

    def move(self, photos: list[str], number: int) -> None:
        """Put photos into a group, wherever they were."""
        into = self.group(number)
        self._take_out(photos)
        into.photos += dict.fromkeys(photos)
        self._drop_empty()

    def split(self, photos: list[str]) -> Group:
        """Make a new group, without a name, of photos of others."""
        if not photos:
            raise Refusal(422, "no photos were chosen: choose those that belong together")
        return self.add(photos)

    def throw_away(self, photos: list[str]) -> None:
        """Have photos in no group, and not in a new one either."""
        self._take_out(photos)
        self.thrown += dict.fromkeys(photos)
        self._drop_empty()

    def release(self, photos: list[str]) -> None:
        """Have photos in no group; they may be put into a new one."""
        self._take_out(photos)
        self._drop_empty()

    def _take_out(self, photos: list[str]) -> None:
        gone = set(photos)
        self.thrown = [photo for photo in self.thrown if photo not in gone]
        self.learned = [photo for photo in self.learned if photo not in gone]
        for group in self.groups:
            group.photos = [photo for photo in group.photos if photo not in gone]

    def _drop_empty(self) -> None:
        self.groups = [group for group in self.groups if group.photos]


def class_name(name: str) -> str:
    """Return the name of a class as it is kept; it has to be the name of a folder, and readable.

    >>> class_name("../apple")
    Traceback (most recent call last):
    oarlock.studio.refusals.Refusal: '../apple' cannot be the name of a class: it has a / in it
    """
    name = name.strip()
    wrong = None
    if not name:
        wrong = "it is empty"
    elif "/" in name:
        wrong = "it has a / in it"
    elif name.startswith("."):
        wrong = "it begins with a dot"
    elif not name.isprintable():
        wrong = "some of it cannot be shown"
    elif len(name.encode(errors="replace")) > LONGEST_NAME:
        wrong = f"it is longer than {LONGEST_NAME} bytes"
    if wrong:
        shown = name if len(name) <= 60 else name[:59] + "…"
        raise Refusal(422, f"{shown!r} cannot be the name of a class: {wrong}")
    return name


def check_photos(photos: list[str], there: set[str]) -> None:
    """Refuse photos that the studio does not have."""
    if missing := [photo for photo in photos if photo not in there]:
        raise Refusal(404, f"there is no photo {PHOTO(missing[0], 'a photo')} here")
