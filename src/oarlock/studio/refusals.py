"""What is refused, with the HTTP status that says so, and the limits that decide it."""

from dataclasses import dataclass

from oarlock.errors import OarlockError


@dataclass(frozen=True)
class Limits:
    """Hold how much of everything there may be."""

    body: int = 2**28  # bytes of one request
    photo: int = 2**25  # bytes of one photo
    photos: int = 200  # in one request
    pixels: int = 2**26  # of one photo
    waiting: int = 4096  # photos that requests wait for, all together
    silence: float = 20.0  # seconds that a request may say nothing before its end
    patience: float = 300.0  # seconds that a request may take to come in


LIMITS = Limits()


class Refusal(OarlockError):
    """Say in a sentence why a request is not answered, and its status."""

    def __init__(self, status: int, *sentences: str) -> None:
        super().__init__(*sentences)
        self.status = status
