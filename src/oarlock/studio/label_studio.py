"""Label Studio's machine-learning backend, over the same functions: it asks for predictions, and what people annotate
there is taught.

https://labelstud.io/guide/ml_create says what is asked and answered. Photos are those of the folder that the server
was given, or come inside the task; nothing is fetched from anywhere.
"""

import base64
import binascii
import xml.etree.ElementTree as xml
from typing import Any, NamedTuple
from urllib.parse import parse_qs, unquote, urlsplit

from fastapi import APIRouter, Request
from starlette.concurrency import run_in_threadpool

from oarlock.schema import list_of, mapping, plain, record
from oarlock.studio.answering import Json
from oarlock.studio.answers import is_known
from oarlock.studio.bodies import read_json
from oarlock.studio.photos import check_photo
from oarlock.studio.refusals import LIMITS, Refusal
from oarlock.studio.studio import Studio

ANNOTATED = ("ANNOTATION_CREATED", "ANNOTATION_UPDATED", "ANNOTATIONS_CREATED")
TASK = record({"data": mapping(plain)})


class Config(NamedTuple):
    """Hold what of a labelling interface is about us: the choice, and the image it is a choice for."""

    choices: str
    image: str
    key: str  # of a task's data, where its image is named


def read_config(text: str) -> Config:
    """Return the first choice for an image in a labelling interface.

    >>> read_config('<View><Image name="a" value="$photo"/><Choices name="kind" toName="a"/></View>')
    Config(choices='kind', image='a', key='photo')
    """
    if "<!" in text.replace("<!--", ""):
        raise Refusal(422, "the labelling interface declares entities, which are not read")
    try:
        root = xml.fromstring(text)
    except xml.ParseError as problem:
        raise Refusal(422, f"the labelling interface is not XML ({problem})") from None
    images = {tag.get("name", ""): tag.get("value", "").removeprefix("$") for tag in root.iter("Image")}
    for tag in root.iter("Choices"):
        if tag.get("toName", "") in images:
            image = tag.get("toName", "")
            return Config(tag.get("name", ""), image, images[image])
    raise Refusal(422, "the labelling interface has no <Choices> for an <Image>")


def build_backend(studio: Studio) -> APIRouter:
    """Return the routes that Label Studio calls."""
    api = APIRouter(prefix="/label-studio")

    @api.get("/health", summary="Label Studio: whether it answers")
    def health() -> Json:
        return Json({"status": "UP", "model_class": "Oarlock"})

    @api.post("/setup", summary="Label Studio: a project is connected")
    async def setup(request: Request) -> Json:
        """Check that the project's labelling interface has a choice for an image."""
        content = await read_json(request)
        if content.get("schema"):
            read_config(str(content["schema"]))
        return Json({"model_version": _version(studio)})

    @api.post("/predict", summary="Label Studio: predictions for tasks")
    async def predict(request: Request) -> Json:
        """Answer tasks. One whose photo is unknown, or is not here, has an empty result of score 0."""
        content = await read_json(request, record({"tasks": list_of(TASK, most=LIMITS.photos)}))
        config = read_config(str(content.get("label_config") or ""))
        results = await run_in_threadpool(_predict, studio, content["tasks"], config)
        return Json({"results": results, "model_version": _version(studio)})

    @api.post("/webhook", summary="Label Studio: something was annotated", status_code=201)
    async def webhook(request: Request) -> Json:
        """Put an annotated photo into the group of its class; begin a lesson with all named groups when told to."""
        content = await read_json(request)
        if content.get("action") in ANNOTATED:
            return Json(await run_in_threadpool(_take_in, studio, content), 201)
        if content.get("action") == "START_TRAINING":
            return Json(await run_in_threadpool(_fit, studio), 201)
        return Json({}, 201)

    return api


def _version(studio: Studio) -> str:
    model = studio.bench.models.get()
    return "none yet" if model is None else model.version


def _predict(studio: Studio, tasks: list[dict[str, Any]], config: Config) -> list[dict[str, Any]]:
    version, threshold = _version(studio), studio.bench.models.need().threshold(studio.bench.board.accept)
    photos = [_photo(studio, task["data"].get(config.key)) for task in tasks]
    answers = studio.looking.look([photo for photo in photos if photo is not None])
    results = []
    for photo in photos:
        answer = answers.get(photo or "", {"error": "it is not here"})
        choices, score = [], 0.0
        if "error" not in answer and is_known(answer, threshold):
            score = answer["probability"] or 0.0
            choices.append(
                {
                    "from_name": config.choices,
                    "to_name": config.image,
                    "type": "choices",
                    "value": {"choices": [str(answer["label"])]},
                    "score": score,
                }
            )
        results.append({"result": choices, "score": score, "model_version": version})
    return results


def _photo(studio: Studio, named: Any) -> str | None:
    """The id of the photo that a task names. A name is looked up among the photos of the folder, and nowhere else."""
    if not isinstance(named, str):
        return None
    if named.startswith("data:"):
        return _sent(studio, named)
    folder, parts = studio.bench.store.folder, urlsplit(named)
    if folder is None or parts.scheme or parts.netloc:
        return None
    if parts.path.startswith("/data/local-files"):
        name = parse_qs(parts.query).get("d", [""])[0]
    else:
        name = unquote(parts.path).removeprefix("/data/")
    return folder.find(name.lstrip("/"))


def _sent(studio: Studio, named: str) -> str | None:
    try:
        content = base64.b64decode(named.partition(",")[2], validate=True)
        check_photo(content, "a task's photo")
    except (binascii.Error, ValueError):
        return None
    with studio.bench.changing() as board:
        photo = studio.bench.store.keep_photo(content)
        board.names.setdefault(photo, "from Label Studio")
    return photo


def _take_in(studio: Studio, content: dict[str, Any]) -> dict[str, Any]:
    tasks, annotations = content.get("task", []), content.get("annotation", [])
    tasks = tasks if isinstance(tasks, list) else [tasks]
    annotations = annotations if isinstance(annotations, list) else [annotations]
    taken = 0
    for task, annotation in zip(tasks, annotations, strict=False):
        name = _choice(annotation)
        named = list((task.get("data") or {}).values()) if isinstance(task, dict) else []
        photo = next((found for value in named if (found := _photo(studio, value))), None)
        if name is not None and photo is not None:
            with studio.bench.changing() as board:
                board.add([photo], name)
            taken += 1
    return {"taken": taken}


def _choice(annotation: Any) -> str | None:
    """The one class that was chosen; None where none or several were."""
    results = annotation.get("result") if isinstance(annotation, dict) else None
    for result in results if isinstance(results, list) else []:
        value = result.get("value") if isinstance(result, dict) else None
        chosen = value.get("choices") if isinstance(value, dict) else None
        if isinstance(chosen, list) and len(chosen) == 1 and isinstance(chosen[0], str):
            return chosen[0]
    return None


def _fit(studio: Studio) -> dict[str, Any]:
    with studio.bench.reading() as board:
        named = [group.id for group in board.groups if group.name is not None]
    return {"job": studio.lessons.learn(named, {}).number}
