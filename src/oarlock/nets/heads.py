"""Classifier heads."""

import torch
from torch import nn

INIT_STD = 0.02


def new_head(features: int, outputs: int, generator: torch.Generator) -> nn.Linear:
    head = nn.Linear(features, outputs)
    nn.init.trunc_normal_(head.weight, std=INIT_STD, generator=generator)
    nn.init.zeros_(head.bias)
    return head
