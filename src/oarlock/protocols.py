"""The paper's five protocols: streams by name, and the size of the adapters on them."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Protocol:
    """A data set cut into equal tasks."""

    tasks: int
    classes_per_task: int
    width: int  # of an adapter

    @property
    def classes(self) -> int:
        return self.tasks * self.classes_per_task


PROTOCOLS = {
    "c10-5t": Protocol(5, 2, width=64),
    "c100-10t": Protocol(10, 10, width=128),
    "c100-20t": Protocol(20, 5, width=128),
    "t-5t": Protocol(5, 40, width=128),
    "t-10t": Protocol(10, 20, width=128),
}
