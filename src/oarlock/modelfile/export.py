"""A model as an ONNX graph, for programs without torch: pixels in, log-probabilities and a score out."""

import json
import warnings
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from oarlock.errors import OarlockError
from oarlock.files import replacing
from oarlock.learner import Learner
from oarlock.nets.adapters import CHUNK
from oarlock.prediction import Speed, build_predictor

ACCEPT = (0.9, 0.95, 0.99)  # shares of known images whose thresholds go into the file
TOLERANCE = 1e-4


class Export(NamedTuple):
    """Hold what was written, and by how much a probability or (relatively) a score differs from torch's at most."""

    path: Path
    bytes: int
    images: int
    difference: float


class Graph(nn.Module):
    """Compute all that happens from prepared pixels to answers; closed gates are cut out."""

    def __init__(self, learner: Learner) -> None:
        super().__init__()
        self.trunk, self.method = learner.method.trunk, learner.method  # so that their tensors are the graph's
        # All tasks in one pass, whatever the number of images: one graph for all of them.
        speed = Speed(folded=True)
        self._predictor = build_predictor(learner.method, len(learner.tasks_), speed, learner.calibration)
        self._columns = learner.columns

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        predicted = self._predictor.predict_scores(images)
        return self._columns.joined(predicted.scores).log_softmax(1), predicted.in_distribution


def export_onnx(learner: Learner, path: Path) -> Export:
    """Write the graph, after its answers to some images were compared with torch's."""
    method = learner.method
    if method.protector is not None and not method.can_compact:
        raise OarlockError(f"{method.name} asks for gradients to answer, which no graph can do; nothing was written")
    runtime = _runtime()
    graph, images = Graph(learner).eval(), _probes(learner)
    model = _graph_of(graph, images[:3], learner.method.name)
    for key, value in describe(learner).items():
        model.metadata_props.add(key=key, value=json.dumps(value))
    written = model.SerializeToString()
    difference = _difference(runtime, written, graph, images)
    if not difference < TOLERANCE:
        raise OarlockError(f"the exported graph answers differently (by {difference:.2g}), so nothing was written")
    with replacing(path) as file:
        file.write(written)
    return Export(path, len(written), len(images), difference)


def describe(learner: Learner) -> dict[str, Any]:
    """Return what a program needs besides the graph, which itself normalises the pixels."""
    rule = learner.trunk.rule
    thresholds = {str(accept): learner.threshold(accept) for accept in ACCEPT} if len(learner.calibration) else {}
    return {
        "classes": learner.classes_.tolist(),
        "tasks": learner.tasks_,
        "image_size": rule.size,
        "resize_short_side_to": rule.resize,
        "unknown_below": thresholds,
    }


def _graph_of(graph: Graph, example: Tensor, name: str) -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the exporter, about its own parts
            program = torch.onnx.export(
                graph,
                (example,),
                dynamo=True,
                input_names=["images"],
                output_names=["log_probabilities", "in_distribution"],
                dynamic_shapes=({0: torch.export.Dim("batch", max=CHUNK)},),
                verbose=False,
            )
    except torch.onnx.errors.OnnxExporterError as problem:
        raise OarlockError(
            f"{name} does something that torch cannot write as ONNX, so nothing was written"
        ) from problem
    assert program is not None
    return program.model_proto


def _difference(runtime: Any, written: bytes, graph: Graph, images: Tensor) -> float:
    session = runtime.InferenceSession(written, providers=["CPUExecutionProvider"])
    with torch.no_grad():
        expected = graph(images)
    log_shares, known = map(torch.from_numpy, session.run(None, {"images": images.numpy()}))
    of_shares = (log_shares.exp() - expected[0].exp()).abs().max()
    of_known = ((known - expected[1]) / expected[1].abs().clamp_min(1)).abs().max()
    return float(torch.maximum(of_shares, of_known))


def _probes(learner: Learner) -> Tensor:
    """Known images where the model keeps some, else noise."""
    size = learner.trunk.card.preprocessing.size
    noise = torch.randint(0, 256, (8, 3, size, size), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    kept = [store.images.cpu()[:CHUNK] for store in (learner.calibration, learner.method.memory)]
    return next((images for images in kept if len(images) > 1), noise)


def _runtime() -> Any:
    try:
        import onnxruntime
        import onnxscript  # noqa: F401 (torch's exporter needs it)
    except ImportError as problem:
        raise OarlockError(
            f"{problem.name} is not installed, which writing ONNX needs: pip install 'oarlock[onnx]'"
        ) from problem
    return onnxruntime
