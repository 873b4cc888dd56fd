"""Photos that the studio has: shown in pages, answered, sorted into groups."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from oarlock.data.images import read_files
from oarlock.errors import OarlockError
from oarlock.modelfile.unknowns import group_images
from oarlock.studio.answers import TOP, Answers, Said, is_known, said
from oarlock.studio.bench import Bench
from oarlock.studio.board import check_photos
from oarlock.studio.current import Loaded
from oarlock.studio.jobs import Job
from oarlock.studio.photos import check_photo, shown
from oarlock.studio.refusals import Refusal

PAGE = 60  # photos of a page
TOGETHER = 32  # photos that a job looks at before somebody else's turn
MOST_GROUPED = 2000  # photos sorted at a time
SHOWN = ("all", "known", "unknown")


class Looking:
    """Look at photos with the current model."""

    def __init__(self, bench: Bench) -> None:
        self.bench, self.answers = bench, Answers(bench.store)

    # -- photos that come in -------------------------------------------------------------------------------

    def receive(self, photos: Sequence[tuple[str, bytes]], group: str | None = None) -> dict[str, Any]:
        """Keep photos and answer them, or put them into the group of a name; what is no photo is told."""
        kept: dict[str, str] = {}
        refused: list[dict[str, Any]] = []
        for name, content in photos:
            try:
                check_photo(content, name)
                kept[self.bench.store.keep_photo(content)] = shown(name)
            except Refusal as problem:
                refused.append({"name": shown(name), "status": problem.status, "error": str(problem)})
        if refused and not kept:
            raise Refusal(refused[0]["status"], *(one["error"] for one in refused[:5]))
        with self.bench.changing() as board:
            board.names.update(kept)
            if group is not None and kept:
                board.add(list(kept), group)
        answers = self.look([*kept]) if group is None and self.bench.models.get() is not None else {}
        broken = [
            {"name": kept[photo], "status": 422, "error": answer["error"]}
            for photo, answer in answers.items()
            if "error" in answer
        ]
        self.remove([photo for photo, answer in answers.items() if "error" in answer])
        good = [self._listed(photo, answers) for photo in kept if "error" not in answers.get(photo, {})]
        return {"photos": good, "refused": refused + broken}

    def remove(self, photos: Sequence[str]) -> None:
        """Forget photos that were sent; of a folder's photos only what is known of them."""
        if not photos:
            return
        with self.bench.changing() as board:
            check_photos(list(photos), self.bench.there() | board.grouped())
            board.release(list(photos))
            for photo in photos:
                board.names.pop(photo, None)
        self.answers.forget(photos)
        self.bench.store.remove_photos(list(photos))

    # -- answers -------------------------------------------------------------------------------------------

    def look(self, photos: Sequence[str], job: Job | None = None) -> dict[str, Said]:
        """Return the answer to each photo, made now where there is none; of one that cannot be read, the error."""
        model = self.bench.models.need()
        known = self.answers.of(model)
        found: dict[str, Said] = {photo: known[photo] for photo in photos if photo in known}
        missing = [photo for photo in dict.fromkeys(photos) if photo not in known]
        for start in range(0, len(missing), TOGETHER):
            some = missing[start : start + TOGETHER]
            found |= self._answered(model, some)
            if job is not None:
                job.report(len(found) / len(photos), f"{len(found)} of {len(photos)} photos")
        return found

    def _answered(self, model: Loaded, photos: list[str]) -> dict[str, Said]:
        pictures, found = self.pictures(model, photos)
        if pictures:
            names = [self.bench.name(photo) for photo in pictures]
            predicted = self.bench.batcher.ask(model, np.stack([*pictures.values()])).result()
            answers = said(model, predicted, None, TOP, names)
            self.answers.put(model, pictures, answers)
            found |= dict(zip(pictures, answers, strict=True))
        return found

    def pictures(self, model: Loaded, photos: Sequence[str]) -> tuple[dict[str, np.ndarray], dict[str, Said]]:
        """Return photos as the trunk sees them, and what is wrong with those that cannot be read."""
        paths, pictures, broken = {}, {}, {}
        for photo in photos:
            try:
                paths[self.bench.store.path(photo)] = photo
            except Refusal as problem:
                broken[photo] = {"error": str(problem)}
        for path, picture in read_files(paths, model.rule, TOGETHER):
            if isinstance(picture, OarlockError):
                name = self.bench.name(paths[path])
                broken[paths[path]] = {"error": str(picture).replace(str(path), name)}  # no path leaves the server
            else:
                pictures[paths[path]] = picture
        return pictures, broken

    def look_through(self) -> Job:
        """Begin to answer all photos of the folder; what was answered stays when it is stopped."""
        folder = self._folder()
        self.bench.models.need()

        def work(job: Job) -> dict[str, int]:
            folder.look_again()
            try:
                found = self.look([*folder.paths], job)
            finally:
                self.answers.save()
                self.bench.changed()
            return {"photos": len(found), "unreadable": sum("error" in answer for answer in found.values())}

        return self.bench.jobs.start("look", f"Looking through {folder.root.name}", work)

    def _folder(self) -> Any:
        folder = self.bench.store.folder
        if folder is None:
            raise Refusal(409, "no folder was given: start the studio with --photos FOLDER")
        return folder

    # -- pages of photos -----------------------------------------------------------------------------------

    def page(self, where: str, show: str, number: int, accept: float) -> dict[str, Any]:
        """Return some of the photos that were sent (`sent`, the latest first) or of the folder's (`folder`)."""
        if show not in SHOWN or where not in ("sent", "folder") or number < 0:
            raise Refusal(422, f"show={show}, where={where}, page={number}: there is no such page")
        model = self.bench.models.get()
        with self.bench.reading() as board:
            photos = [*reversed(board.names)] if where == "sent" else [*self._folder().paths]
        answers = {} if model is None else self.answers.of(model)
        if show != "all" and model is not None:
            threshold, wanted = model.threshold(accept), show == "known"
            photos = [p for p in photos if p in answers and is_known(answers[p], threshold) == wanted]
        some = photos[number * PAGE : (number + 1) * PAGE]
        return {
            "photos": [self._listed(photo, answers) for photo in some],
            "count": len(photos),
            "page": number,
            "pages": max(1, -(-len(photos) // PAGE)),
        }

    def _listed(self, photo: str, answers: dict[str, Said]) -> dict[str, Any]:
        return {"photo": photo, "name": self.bench.name(photo), "answer": answers.get(photo)}

    # -- unknown photos ------------------------------------------------------------------------------------

    def unknown(self) -> list[str]:
        """Return the unknown photos that are in no group, those first that look least like anything learned."""
        model = self.bench.models.get()
        if model is None:
            return []
        with self.bench.reading() as board:
            threshold, waiting = model.threshold(board.accept), self.bench.there() - board.grouped()
        answers = self.answers.of(model)
        found = [p for p, answer in answers.items() if p in waiting and not is_known(answer, threshold)]
        return sorted(found, key=lambda photo: answers[photo]["score"] or 0)

    def group(self, groups: int | None = None, *, anew: bool = False) -> Job:
        """Begin to sort the unknown photos into groups; photos that have a group stay in it, unless those in groups
        without a name are to be sorted `anew`."""
        model, waiting = self.bench.models.need(), self.unknown()
        if anew:
            with self.bench.reading() as board:
                waiting += [photo for group in board.groups if group.name is None for photo in group.photos]
        if not waiting:
            raise Refusal(409, "no unknown photo is without a group: drop more photos, or accept fewer of them")

        def work(job: Job) -> dict[str, int]:
            photos, pictures = waiting[:MOST_GROUPED], dict[str, np.ndarray]()
            for start in range(0, len(photos), TOGETHER):
                job.report(0.7 * start / len(photos), f"reading {len(photos)} photos")
                pictures |= self.pictures(model, photos[start : start + TOGETHER])[0]
            job.report(0.7, f"comparing {len(pictures)} photos")
            wanted = None if groups is None else min(groups, len(pictures))
            grouping = group_images(model.learner, np.stack([*pictures.values()]), wanted)
            members = np.array([*pictures])
            with self.bench.changing() as board:
                for number in range(len(grouping.centres)):
                    rows = np.flatnonzero(grouping.groups == number)
                    typical = rows[np.argsort(grouping.distances[rows], kind="stable")]
                    board.add(members[typical].tolist())
            return {"photos": len(pictures), "groups": len(grouping.centres), "left": len(waiting) - len(photos)}

        return self.bench.jobs.start("group", "Sorting unknown photos", work)
