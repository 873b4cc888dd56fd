"""Lists and dictionaries of modules that type checkers can see into."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Generic, TypeVar

from torch import nn

M = TypeVar("M", bound=nn.Module)


class Modules(nn.ModuleList, Generic[M]):
    """`nn.ModuleList`, with a type for what it holds."""

    if TYPE_CHECKING:

        def __getitem__(self, index: int) -> M: ...  # type: ignore[override]

        def __iter__(self) -> Iterator[M]: ...


class NamedModules(nn.ModuleDict, Generic[M]):
    """`nn.ModuleDict`, with a type for what it holds."""

    if TYPE_CHECKING:

        def __getitem__(self, name: str) -> M: ...
