from dataclasses import replace

import pytest
import torch

from tests.tiny import MODEL, translating
from utils.serve.cross_attention import CrossAttention
from utils.visualize.attention import cross_attention

SOURCES = [[5, 6, 7, 8, 9], [4], [7, 5], [9] * 12]
TARGETS = [[6, 5], [8, 8, 4], [], [5, 6, 7, 8]]


@pytest.mark.parametrize("fused", [True, False])
def test_the_weights_are_those_of_the_pictures(fused: bool) -> None:
    found = CrossAttention(translating(replace(MODEL, fused=fused))).weights(SOURCES, TARGETS)
    explicit = translating(replace(MODEL, fused=False))
    for weights, src, tgt in zip(found, SOURCES, TARGETS, strict=True):
        of_heads = cross_attention(explicit, src, tgt)[-1]
        torch.testing.assert_close(weights, of_heads.mean(0)[:-1])  # the picture's last row chooses </s>


def test_every_token_looks_once() -> None:
    for weights, src, tgt in zip(
        CrossAttention(translating()).weights(SOURCES, TARGETS), SOURCES, TARGETS, strict=True
    ):
        assert weights.shape == (len(tgt), len(src) + 1)
        torch.testing.assert_close(weights.sum(1), torch.ones(len(tgt)))


def test_nothing_has_no_weights() -> None:
    assert CrossAttention(translating()).weights([], []) == []
