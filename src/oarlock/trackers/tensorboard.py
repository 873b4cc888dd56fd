"""TensorBoard: event files in the run's directory."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oarlock.trackers import Tracker, tracker


@tracker("tensorboard")
class TensorBoard(Tracker):
    """Write event files, for `tensorboard --logdir`. A run that goes on is written from its beginning, in place of
    what there was."""

    package = "tensorboard"

    def __init__(self, title: str, folder: Path, settings: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        place = folder / "tensorboard"
        for before in place.glob("events.out.tfevents.*"):
            before.unlink()
        self.writer = SummaryWriter(str(place))
        self.writer.add_text("settings", json.dumps(settings, indent=1, default=str))

    def log(self, values: Mapping[str, float], axis: str, step: int) -> None:
        for name, value in values.items():
            self.writer.add_scalar(name, value, step)

    def attach(self, file: Path) -> None:
        self.writer.add_text(file.name, str(file))  # it keeps no files, but can say where one lies

    def close(self, finished: bool) -> None:
        self.writer.close()
