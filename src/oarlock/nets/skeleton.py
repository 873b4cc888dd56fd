"""Networks with shapes and no values: what a description would build, before any memory is given to it."""

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from oarlock.errors import OarlockError


@contextmanager
def skeleton(most: int, what: str) -> Iterator[None]:
    """Have everything that is made here be without values, and refuse to make more tensors than there can be.

    >>> with skeleton(4, "the file"):
    ...     torch.nn.Linear(10**6, 10**6).weight.shape
    torch.Size([1000000, 1000000])
    >>> with skeleton(4, "the file"):
    ...     [torch.nn.Linear(1, 1) for _ in range(10**9)]
    Traceback (most recent call last):
    oarlock.errors.OarlockError: the file describes more tensors than there are
    """
    ours, made = threading.get_ident(), 0

    def count(module: Any, name: str, value: Any) -> None:
        nonlocal made
        if value is None or threading.get_ident() != ours:
            return
        made += 1
        if made > most:
            raise OarlockError(f"{what} describes more tensors than there are")

    hooks = [register_module_parameter_registration_hook(count), register_module_buffer_registration_hook(count)]
    try:
        with torch.device("meta"):
            yield
    finally:
        for hook in hooks:
            hook.remove()


def check_fit(expected: Mapping[str, Tensor], found: Mapping[str, Tensor], what: str) -> None:
    """Refuse tensors that are others than expected, by name, type or shape."""

    def said(tensors: Mapping[str, Tensor], name: str) -> str:
        return f"{tensors[name].dtype} {tuple(tensors[name].shape)}" if name in tensors else "absent"

    wrong = sorted(name for name in expected.keys() | found.keys() if said(expected, name) != said(found, name))
    if wrong:
        raise OarlockError(
            f"{what} does not fit its description: {len(wrong)} tensors differ, for example {wrong[0]!r} "
            f"({said(found, wrong[0])} in place of {said(expected, wrong[0])})"
        )


def check_finite(tensors: Mapping[str, Tensor], what: str) -> None:
    """Refuse floating-point tensors that hold something other than finite numbers."""
    for name, tensor in tensors.items():
        if not (tensor.is_floating_point() and tensor.numel()):
            continue
        known = tensor if tensor.element_size() > 1 else tensor.half()  # numbers of one byte have no order in torch
        ends = torch.stack(known.aminmax())  # which a NaN is, too; a look at each number takes many times as long
        if not bool(ends.isfinite().all()):
            raise OarlockError(f"{what} is not a model that learned anything: {name!r} holds what is no number")
