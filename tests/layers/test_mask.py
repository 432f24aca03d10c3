"""Masks against their definition, one entry at a time."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from layers.mask import causal_mask, padding_mask


@settings(max_examples=30)
@given(
    ids=st.tuples(st.integers(1, 4), st.integers(1, 6)).flatmap(
        lambda size: st.lists(
            st.lists(st.integers(0, 4), min_size=size[1], max_size=size[1]), min_size=size[0], max_size=size[0]
        )
    ),
    pad_id=st.integers(0, 4),
)
def test_only_real_tokens_are_attended_to(ids: list[list[int]], pad_id: int) -> None:
    mask = padding_mask(torch.tensor(ids), pad_id)
    assert mask[:, 0, 0].tolist() == [[token != pad_id for token in row] for row in ids]


@settings(max_examples=30)
@given(t_len=st.integers(1, 6), memory=st.integers(0, 6))
def test_each_query_sees_the_keys_up_to_its_own_place(t_len: int, memory: int) -> None:
    mask = causal_mask(t_len, memory + t_len)
    assert mask.tolist() == [[s <= memory + t for s in range(memory + t_len)] for t in range(t_len)]


@pytest.mark.parametrize("t_len", [1, 2, 5])
def test_later_queries_alone_see_what_they_see_among_all(t_len: int) -> None:
    assert causal_mask(t_len, 5).equal(causal_mask(5, 5)[-t_len:])


def test_joined_masks_ask_for_both() -> None:
    ids = torch.tensor([[5, 6, 7], [5, 6, 0], [0, 0, 7]])
    both = (padding_mask(ids, 0) & causal_mask(3, 3)).expand(3, 2, 3, 3)
    for b, h, t, s in torch.cartesian_prod(*map(torch.arange, both.shape)).tolist():
        assert both[b, h, t, s].item() == (s <= t and ids[b, s].item() != 0), (b, h, t, s)


def test_the_mask_is_made_where_it_is_asked_for() -> None:
    assert causal_mask(2, 2, torch.device("meta")).is_meta
