"""E[ids] · √D."""

import pytest
import torch

from layers.token_embedding import TokenEmbedding


@pytest.mark.parametrize("d_model", [1, 7, 16])
def test_a_token_is_its_row_times_the_root_of_the_width(d_model: int) -> None:
    torch.manual_seed(0)
    embedding, ids = TokenEmbedding(5, d_model), torch.tensor([[4, 0, 4], [1, 2, 3]])
    out = embedding(ids)
    for (b, t), token in zip([(b, t) for b in range(2) for t in range(3)], ids.flatten().tolist(), strict=True):
        torch.testing.assert_close(out[b, t], embedding.weight[token] * d_model**0.5)


def test_padding_is_zero_and_stays_so() -> None:
    torch.manual_seed(0)
    embedding, ids = TokenEmbedding(5, 4, padding_idx=0), torch.tensor([[3, 0, 0]])
    assert embedding(ids)[0, 1:].count_nonzero() == 0
    embedding(ids).sum().backward()
    assert embedding.weight.grad is not None
    assert embedding.weight.grad.abs().sum(1).nonzero().flatten().tolist() == [3]
