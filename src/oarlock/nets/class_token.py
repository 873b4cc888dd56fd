"""Attention where only the class token asks: the last one of a trunk that pools the class token."""

import torch
from timm.models.vision_transformer import Attention
from torch import Tensor, nn


def is_linear(attention: Attention) -> bool:
    """Whether keys and values are linear in the tokens and nothing else happens to them."""
    normed = [getattr(attention, name, None) for name in ("q_norm", "k_norm", "norm")]
    return getattr(attention, "gate", None) is None and all(
        norm is None or isinstance(norm, nn.Identity) for norm in normed
    )


def attend_by_class_token(attention: Attention, x: Tensor) -> Tensor:
    """What `attention(x)[:, :1]` is, up to rounding, for a small part of its cost: tokens [B, N, D] → [B, 1, D].

    With one query, keys and values need not be computed for each token: q·(K x) = (Kᵀ q)·x and Σ a (V x) = V (Σ a x).
    A bias of the keys adds the same to the scores of all tokens, which softmax does not see.
    """
    heads, (batch, _, width) = attention.num_heads, x.shape
    query, key, value = attention.qkv.weight.view(3, heads, -1, width)
    bias = attention.qkv.bias
    of_query, _, of_value = (0, 0, 0) if bias is None else bias.view(3, heads, -1)
    q = torch.einsum("bc,hdc->bhd", x[:, 0], query) + of_query
    scores = torch.einsum("bhd,hdc->bhc", q * attention.scale, key) @ x.transpose(1, 2)
    pooled = scores.softmax(-1) @ x
    answer = torch.einsum("bhc,hdc->bhd", pooled, value) + of_value
    projected: Tensor = attention.proj(answer.reshape(batch, 1, -1))
    return projected
