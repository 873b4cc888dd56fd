"""HAT's gates, done exactly: closed-form gradient, per-epoch annealing, binary masks when a task is finished.

A gate is `a = σ(s·e)` with one embedding `e` per unit and task. While a task is learned `s` is annealed within
every epoch from 1/s_max to s_max; afterwards the gate is the binary mask `e > 0`, and that same mask predicts,
protects and is in force when heads are tuned.
"""

from typing import Any

import torch
from torch import Tensor, nn

from oarlock.nets.modules import Modules

CLAMP = 6.0  # keeps an embedding within reach of its own gradient
# A gate below this is closed. It could not be seen in float32 sums; but its products would be subnormal numbers, on
# which CPUs take ten times as long.
CLOSED = 1e-10


class _Gate(torch.autograd.Function):
    """Forward σ(s·e), backward s_max·σ'(e): what the published compensation by cosh amounts to, without its
    overflow and without the zeros that a·(1−a) rounds to."""

    @staticmethod
    def forward(ctx: Any, e: Tensor, s: float, s_max: float) -> Tensor:
        ctx.save_for_backward(e)
        ctx.s_max = s_max
        a = torch.sigmoid(s * e)
        return a.masked_fill(a < CLOSED, 0.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        (e,) = ctx.saved_tensors
        open_ = torch.sigmoid(e)
        return grads[0] * ctx.s_max * open_ * (1 - open_), None, None


def gate(e: Tensor, s: float, s_max: float) -> Tensor:
    """The soft gate of an embedding.

    >>> gate(torch.tensor([-1.0, 0.0, 1.0]), s=400.0, s_max=400.0)
    tensor([0.0000, 0.5000, 1.0000])
    """
    return _Gate.apply(e, s, s_max)


def anneal(fraction: float, s_max: float) -> float:
    """s at a fraction of an epoch: linear from 1/s_max to s_max.

    >>> anneal(0.0, 500.0), anneal(1.0, 500.0)
    (0.002, 500.0)
    """
    return 1 / s_max + (s_max - 1 / s_max) * fraction


class Gates(nn.Module):
    """One task's gates: for every adapter a hidden gate for each of its bottlenecks, and one output gate."""

    def __init__(self, hidden: list[list[int]], outputs: list[int]) -> None:
        super().__init__()
        self.hidden: Modules[nn.ParameterList] = Modules(
            nn.ParameterList(nn.Parameter(torch.zeros(width)) for width in widths) for widths in hidden
        )
        self.output = nn.ParameterList(nn.Parameter(torch.zeros(count)) for count in outputs)
        self.register_buffer("finished", torch.tensor(False))
        self.finished: Tensor

    def reset(self, generator: torch.Generator) -> None:
        for e in self.parameters():
            e.data.copy_(torch.randn(e.shape, generator=generator))

    def values(self, s: float, s_max: float) -> list[tuple[list[Tensor], Tensor]]:
        """For every adapter (hidden gates, output gate), soft while learning and binary once finished."""

        def value(e: Tensor) -> Tensor:
            return (e > 0).to(e.dtype) if self.finished else gate(e, s, s_max)

        return [
            ([value(e) for e in widths], value(out)) for widths, out in zip(self.hidden, self.output, strict=True)
        ]

    def finish(self) -> None:
        self.finished.fill_(True)
        self.requires_grad_(False)

    @torch.no_grad()
    def clamp(self) -> None:
        for e in self.parameters():
            e.clamp_(-CLAMP, CLAMP)


def regulariser(soft: list[Tensor], used: list[Tensor]) -> Tensor:
    """Σ a(1−a_prev) / Σ (1−a_prev): the share of still free units that the task opens; 0 when none is free.

    >>> regulariser([torch.tensor([1.0, 1.0, 0.5])], [torch.tensor([True, False, False])])
    tensor(0.7500)
    """
    free = [~mask for mask in used]
    count = sum(int(mask.sum()) for mask in free)
    opened = sum((a * mask).sum() for a, mask in zip(soft, free, strict=True))
    return torch.as_tensor(opened) / max(count, 1)
