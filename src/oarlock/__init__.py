"""Class-incremental learning that does not forget and that says when it meets something new."""

from oarlock.errors import NotFittedError, OarlockError
from oarlock.learner import Learner, load

__all__ = ["Learner", "NotFittedError", "OarlockError", "load"]
__version__ = "0.2.0"
