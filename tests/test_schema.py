"""Checks of descriptions let pass what is as it should be, and name the place of what is not."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oarlock.errors import OarlockError
from oarlock.schema import (
    Check,
    boolean,
    either,
    from_json,
    integer,
    list_of,
    mapping,
    matching,
    maybe,
    number,
    one_of,
    plain,
    record,
    text,
    understood,
)

PERSON = record({"name": text(10), "ages": list_of(integer(0, 150), most=3)}, {"tall": boolean})


@pytest.mark.parametrize(
    ("check", "good", "bad"),
    [
        (integer(0, 9), [0, 9], [-1, 10, 1.0, True, "1", None, 10**400]),
        (number(0, 1), [0, 1, 0.5], [-0.1, 1.1, float("nan"), float("inf"), "0", False, 10**400]),
        (boolean, [True, False], [0, 1, "true", None]),
        (text(3), ["", "abc", "caf"[:2] + "\udce9"], ["abcd", 1, None, "\ud800"]),
        (matching("[a-z]+"), ["abc"], ["", "ABC", "abc1", 5]),
        (one_of("a", 1), ["a", 1], ["b", True, 1.0]),
        (maybe(integer(1)), [None, 1], [0, "1"]),
        (either(integer(), text(3)), [1, "a"], [1.5, "abcd", None]),
        (list_of(integer(), 1, 2), [[1], [1, 2]], [[], [1, 2, 3], ["a"], 1, {"a": 1}]),
        (mapping(integer(), most=1), [{}, {"a": 1}], [{"a": 1, "b": 2}, {"a": "b"}, [], {"\ud800": 1}]),
        (PERSON, [{"name": "a", "ages": []}, {"name": "a", "ages": [1], "x": [1]}], [{}, [], {"name": "a"}]),
        (record({}, {"a": boolean}, others=False), [{}, {"a": True}], [{"b": 1}]),
        (plain, [None, 1, "a", [1, {"a": [0.5]}]], [float("nan"), [[[[[[[[[[1]]]]]]]]]], {"a": "\ud800"}, {1}]),
    ],
)
def test_a_check_lets_pass_what_it_says_and_nothing_else(check: Check, good: list[Any], bad: list[Any]) -> None:
    for value in good:
        assert check(value, "it") == value
    for value in bad:
        with pytest.raises(OarlockError):
            check(value, "it")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"name": "a", "ages": [7, -1]}, "the person.ages[1] is -1, not a whole number from 0 to 150"),
        ({"name": "a", "ages": [1, 2, 3, 4]}, "the person.ages is a list of 4, not a list of 0 to 3"),
        ({"name": "a", "ages": [], "tall": 2}, "the person.tall is 2, not true or false"),
        ({"ages": []}, "the person has no 'name'"),
        ("x" * 90, f"the person is '{'x' * 58}…, not an object with names"),
    ],
)
def test_a_refusal_names_the_place(value: Any, message: str) -> None:
    with pytest.raises(OarlockError) as refused:
        PERSON(value, "the person")
    assert str(refused.value) == message


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


@given(values)
def test_whatever_comes_is_let_pass_or_refused(value: Any) -> None:
    for check in (PERSON, plain, either(PERSON, list_of(maybe(number()))), mapping(PERSON)):
        try:
            found = check(value, "")
        except OarlockError as refused:
            assert "\n" not in str(refused)
        else:
            assert json.dumps(found, allow_nan=False)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "it is not JSON"),
        ('{"a": 1, "b": {"c": 1, "c": 2}}', "'c' is given twice"),
        ('{"a": NaN}', "NaN is no number"),
        ("[-Infinity]", "-Infinity is no number"),
        ("[" * 100_000 + "]" * 100_000, "lists stand in lists without end"),
        ("1" * 10_000, "a number is too long"),
    ],
)
def test_what_is_not_quite_json_is_refused(content: str, message: str) -> None:
    with pytest.raises(OarlockError, match=message):
        from_json(content)


def break_memory() -> None:
    raise MemoryError


@pytest.mark.parametrize("broken", [lambda: {}["a"], lambda: [][1], lambda: 1 / 0, lambda: int("x\ny"), break_memory])
def test_whatever_breaks_on_a_description_is_a_sentence(broken: Callable[[], object]) -> None:
    message = r"^the description does not fit together \(.+\)$"
    with pytest.raises(OarlockError, match=message), understood("the description"):
        broken()


def test_a_refusal_stays_as_it_is_and_so_does_ctrl_c() -> None:
    with pytest.raises(OarlockError, match=r"^as it was$"), understood("the description"):
        raise OarlockError("as it was")
    with pytest.raises(KeyboardInterrupt), understood("the description"):
        raise KeyboardInterrupt
