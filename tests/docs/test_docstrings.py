"""Docstrings of what is public begin with a verb: not with a word that cannot be one."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import oarlock

NO_VERBS = (
    "A After All An And Any As At Before Below Besides Beside Both Each Either Every Everything For From How If In "
    "Into It Its More Most Neither No Nobody None Not Nothing Of On One Only Other Our Several Some Something That "
    "The Their There These They This Those To Under Until What Whatever When Where Whether Which While Who Whose Why "
    "With Within Without You Your"
)
SOURCE = Path(oarlock.__file__).parent
FILES = sorted(SOURCE.rglob("*.py"))


def public_docstrings(file: Path) -> Iterator[tuple[str, str]]:
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and not node.name.startswith("_"):
            docstring = ast.get_docstring(node)
            if docstring is not None and not docstring.startswith(">>>"):
                yield node.name, docstring


@pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))
def test_docstrings_begin_with_a_verb(file: Path) -> None:
    words = NO_VERBS.split()
    others = [
        f"{name}: {docstring.splitlines()[0]}"
        for name, docstring in public_docstrings(file)
        if docstring.split()[0].strip(",.:;") in words or not docstring[0].isupper()
    ]
    assert others == []
