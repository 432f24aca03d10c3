"""Rotary positions against the paper's matrix, and what they are for: scores that know distances alone."""

import math

import pytest
import torch

from layers.rotary_embedding import RotaryEmbedding


def test_it_is_the_matrix_of_the_paper() -> None:
    """Su et al. 2021, eq. 15: a rotation of each pair of components, written out."""
    x, width = torch.randn(1, 1, 5, 6, dtype=torch.float64), 6
    found = RotaryEmbedding(width, 5)(x, start=0)
    for m in range(5):
        matrix = torch.zeros(width, width, dtype=torch.float64)
        for j in range(width // 2):
            angle = m * 10000 ** (-2 * j / width)
            matrix[2 * j : 2 * j + 2, 2 * j : 2 * j + 2] = torch.tensor(
                [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
            )
        torch.testing.assert_close(found[0, 0, m], matrix @ x[0, 0, m], atol=1e-6, rtol=1e-6)


def test_a_score_depends_on_the_distance_alone() -> None:
    rotary, query, key = RotaryEmbedding(8, 4), torch.randn(1, 1, 1, 8), torch.randn(1, 1, 1, 8)
    scores = [float((rotary(query, start) * rotary(key, start + 3)).sum()) for start in (0, 1, 17, 40)]
    assert scores == pytest.approx([scores[0]] * 4, abs=1e-4)
    assert abs(scores[0] - float((rotary(query, 0) * rotary(key, 2)).sum())) > 1e-3


def test_a_start_is_a_cut_of_the_whole_also_past_the_table() -> None:
    rotary, x = RotaryEmbedding(4, 3), torch.randn(2, 3, 7, 4)
    torch.testing.assert_close(rotary(x[:, :, 5:], start=5), rotary(x)[:, :, 5:])


def test_half_precision_stays_half_and_the_gradient_is_turned_back() -> None:
    rotary = RotaryEmbedding(4, 8)
    assert rotary(torch.randn(1, 1, 8, 4, dtype=torch.bfloat16)).dtype == torch.bfloat16
    x = torch.randn(1, 1, 8, 4, requires_grad=True)
    y = rotary(x)
    (gradient,) = torch.autograd.grad(y, x, y.detach())  # a rotation's transpose is its inverse
    torch.testing.assert_close(gradient, x)


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ValueError, match="5 components"):
        RotaryEmbedding(5, 8)
