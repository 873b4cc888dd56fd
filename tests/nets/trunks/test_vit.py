"""Attention of the class token alone is what timm's attention says about it."""

import pytest
import torch
from timm.models.vision_transformer import Attention
from torch import nn

from oarlock.nets.trunks.vit import attend_by_class_token, is_linear


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("heads", [1, 3])
def test_value_and_gradient_are_timms(bias, heads):
    torch.manual_seed(0)
    attention = Attention(24, num_heads=heads, qkv_bias=bias).eval()
    with torch.no_grad():
        attention.qkv.weight.mul_(4)  # far from uniform attention
    x, same = (torch.randn(5, 9, 24, generator=torch.Generator().manual_seed(1)).requires_grad_() for _ in range(2))
    expected, answer = attention(x)[:, :1], attend_by_class_token(attention, same)
    assert answer.shape == (5, 1, 24)
    torch.testing.assert_close(answer, expected, rtol=1e-5, atol=1e-5)
    for result in (expected, answer):
        result.square().sum().backward()
    torch.testing.assert_close(same.grad, x.grad, rtol=1e-4, atol=1e-4)


def test_attention_that_norms_its_keys_is_not_linear():
    assert is_linear(Attention(24, num_heads=3))
    assert not is_linear(Attention(24, num_heads=3, qk_norm=True, norm_layer=nn.LayerNorm))
