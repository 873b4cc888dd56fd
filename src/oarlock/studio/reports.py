"""How a model does, told in numbers: before a lesson, after it, and against what it promised."""

from typing import Any

from oarlock.modelfile.inspect import check_tasks
from oarlock.studio.current import Loaded


def accuracies(before: Loaded | None, after: Loaded) -> dict[str, Any]:
    """Return the share of calibration photos that get their own class: of the classes there were, before and after,
    and of all classes now."""
    table = after.confusions
    old = 0 if before is None else len(before.learner.classes_)
    return {
        "before": None if before is None else _right(before.confusions),
        "after": None if before is None else _right(table[:old]),
        "all": _right(table),
        "photos": int(table.sum()),
    }


def _right(table: Any) -> float | None:
    total = int(table.sum())
    return int(table.diagonal().sum()) / total if total else None


def promises(model: Loaded) -> dict[str, Any]:
    """Return whether finished tasks answer as they did; `tasks` is empty where the method promises nothing."""
    checks = check_tasks(model.learner)
    return {
        "method": model.learner.method.name,
        "holds": all(task.check.holds for task in checks),
        "tasks": [task.to_json() | {"classes": [str(name) for name in task.classes]} for task in checks],
    }
