"""Test images with what they are and what the learner said."""

import base64
import io

import numpy as np
from PIL import Image

from oarlock.report.markup import panel, text
from oarlock.report.run_files import Array, RunFiles

MOST_EXAMPLES = 48
THUMBNAIL = 112


def examples(run: RunFiles) -> str:
    """A panel of examples; nothing where the run kept none."""
    images, truths, predictions, probabilities = (
        run.tensors[f"example_{part}"][:MOST_EXAMPLES] for part in ("images", "truth", "prediction", "probability")
    )
    if not len(images):
        return ""
    # Index -1, a class never learned or the answer "unknown", finds the last place.
    names = [*run.classes, None]
    items = "".join(
        _example(image, names[truth], names[prediction], float(probability))
        for image, truth, prediction, probability in zip(images, truths, predictions, probabilities, strict=True)
    )
    right = int((truths == predictions).sum())
    how = f"{right} of these {len(images)} are right (✓, solid frame); the others are wrong (✗, dashed frame)."
    return panel("Examples from the test images", how, f'<ul class="examples">{items}</ul>')


def _example(image: Array, truth: object | None, prediction: object | None, probability: float) -> str:
    answer = "unknown" if prediction is None else prediction
    facts = [] if prediction is None else [f"{100 * probability:.0f} %"]
    if truth is None:
        facts.append("never learned")
    elif truth != prediction:
        facts.append(f"is {truth}")
    return (
        f'<li class="{"right" if truth == prediction else "wrong"}"><img src="{_thumbnail(image)}" alt="">'
        f"<b>{text(answer)}</b><small>{text(', '.join(facts))}</small></li>"
    )


def _thumbnail(image: Array) -> str:
    picture = Image.fromarray(np.ascontiguousarray(image.transpose(1, 2, 0)))
    picture.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    picture.save(buffer, "JPEG", quality=90, subsampling=0)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()
