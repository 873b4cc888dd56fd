"""The command that says what there is to know of this machine."""

from typing import Any

import typer

from oarlock.cli.common import AsJson, Device, command
from oarlock.printing import put_json, say


@command()
def doctor(device: Device = "cpu", as_json: AsJson = False) -> None:
    """Say what to put into a bug report: versions, devices, extras, trunks, caches, and how fast a self-test is."""
    from oarlock.doctor import examine, self_test
    from oarlock.errors import check_device

    check_device(device)
    facts = examine(device)
    if not as_json:
        _say(facts)
    try:
        facts["self-test"] = self_test(device)
    except Exception as problem:  # whatever it is, it belongs into the report
        facts["self-test"] = {"failed": f"{type(problem).__name__}: {problem}"}
    put_json(facts) if as_json else _say({"self-test": facts["self-test"]})
    if "failed" in facts["self-test"] or not facts["self-test"]["same_from_file"]:
        raise typer.Exit(1)


def _say(facts: dict[str, Any]) -> None:
    """A paragraph for each part."""
    for name, found in facts.items():
        if isinstance(found, dict):
            say(name, *(f"  {key.replace('_', ' ')}: {_text(value)}" for key, value in found.items()))
        else:
            say(f"{name}: {_text(found)}")


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_text(one)}" for name, one in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "not installed" if value is None else str(value)
