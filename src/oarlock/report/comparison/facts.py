"""What all compared runs share, in words."""

from oarlock.report import wording
from oarlock.report.comparison.summary import Comparison

LONGEST_ORDER = 60  # characters of an order that is a list of classes


def title(comparison: Comparison) -> str:
    return f"{wording.count(len(comparison.methods), 'method')} on {comparison.setting['source']}"


def facts(comparison: Comparison) -> dict[str, str]:
    setting = comparison.setting
    classes = sum(map(len, setting["tasks"]))
    shared = {
        "Protocol": wording.protocol(setting),
        "Stream": f"{classes} classes in {wording.count(len(setting['tasks']), 'task')}",
        "Class orders": "; ".join(wording.shorten(order, LONGEST_ORDER) for order in comparison.orders),
        "Seeds": ", ".join(map(str, comparison.seeds)),
        "Trunk": setting["trunk"],
        "Pre-training saw": wording.overlap(setting["overlap"]),
        "Memory": wording.count(setting["memory"] or 0, "image"),
        "Runs": str(comparison.runs),
    }
    if share := setting.get("validation"):
        shared["Tested on"] = f"{wording.share(share)} of the training images"
    return shared
