"""Which input sizes a trunk can take."""

from dataclasses import dataclass

from oarlock.errors import OarlockError, check_number

LARGEST = 2048  # pixels on a side


@dataclass(frozen=True)
class Sizes:
    """Say in pixels what images a trunk takes: those of its own size, and multiples of a step from some least one up.

    >>> 96 in Sizes(128, step=32, least=64), 100 in Sizes(128, step=32, least=64)
    (True, False)
    >>> print(Sizes(128, step=32, least=64)), print(Sizes(240, step=32, least=64)), print(Sizes(32))
    multiples of 32 from 64 up
    240, and multiples of 32 from 64 up
    32 only
    (None, None, None)
    """

    own: int
    step: int = 0  # 0: no size but its own
    least: int = 0

    def __contains__(self, size: int) -> bool:
        return size == self.own or self._in_steps(size)

    def __str__(self) -> str:
        if not self.step:
            return f"{self.own} only"
        steps = f"multiples of {self.step} from {self.least} up"
        return steps if self._in_steps(self.own) else f"{self.own}, and {steps}"

    def check(self, name: str, size: int) -> None:
        """Refuse a size that the trunk of this name cannot take."""
        check_number("size", size, int, least=1, most=LARGEST)
        if size not in self:
            raise OarlockError(
                f"size={size}: images of the trunk {name!r} cannot have so many pixels; allowed: {self}"
            )

    def _in_steps(self, size: int) -> bool:
        return bool(self.step) and size >= self.least and size % self.step == 0
