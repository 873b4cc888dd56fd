"""What a user can get wrong, told apart from what we got wrong."""

from sklearn.exceptions import NotFittedError

__all__ = ["NotFittedError", "OarlockError"]


class OarlockError(ValueError):
    """A mistake in the input: the message says which input, what is wrong with it and what to do."""
