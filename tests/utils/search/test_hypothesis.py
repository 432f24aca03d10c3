"""Lengths and penalties of a search, and the settings that cannot work."""

import re
from typing import Any

import pytest
import torch

from const.token import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from utils.search.constraint import Bounds, SearchConfig, next_log_probs


@pytest.mark.parametrize(
    ("settings", "src_length", "bounds"),
    [
        ({}, 1, (0, 12)),
        ({"max_ratio": 1.5}, 9, (0, 23)),
        ({"max_ratio": 0}, 9, (0, 10)),
        ({"max_length": 7}, 9, (0, 8)),  # seven tokens and </s>
        ({"max_length": 0}, 9, (0, 1)),
        ({"max_ratio": 90.0}, 9, (0, 40)),  # the window
        ({"max_ratio": float("inf")}, 9, (0, 40)),
        ({"max_ratio": float("inf"), "min_ratio": float("inf")}, 9, (39, 40)),
        ({"min_length": 3}, 1, (3, 12)),
        ({"min_ratio": 0.5}, 9, (4, 28)),
        ({"min_ratio": 0.5, "min_length": 3}, 5, (3, 20)),  # the longer of the two
        ({"min_ratio": 0.5, "min_length": 3}, 8, (4, 26)),
        ({"min_length": 50}, 1, (11, 12)),  # what may not be longer cannot be told to be
        ({"min_ratio": 2.0}, 30, (39, 40)),
        ({"min_length": 7, "max_length": 7}, 9, (7, 8)),
    ],
    ids=str,
)
def test_bounds_grow_with_the_source_between_absolute_ones(
    settings: dict[str, Any], src_length: int, bounds: tuple[int, int]
) -> None:
    assert SearchConfig(**settings).bounds(src_length, window=40) == Bounds(*bounds)


def test_penalties_are_those_of_gnmt_and_of_the_length() -> None:
    gnmt, plain = SearchConfig(length_penalty=0.6), SearchConfig(length_penalty=0.6, normalization="length")
    assert [gnmt.penalty(n) for n in (1, 7, 13)] == pytest.approx([1, 2**0.6, 3**0.6])
    assert [plain.penalty(n) for n in (1, 7, 13)] == pytest.approx([1, 7**0.6, 13**0.6])
    for normalization in ("gnmt", "length"):
        assert SearchConfig(length_penalty=0, normalization=normalization).penalty(50) == 1
        assert SearchConfig(length_penalty=-1, normalization=normalization).penalty(50) < 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beam_size": 0}, "beam_size=0: give 1 (greedy) to 1000"),
        ({"beam_size": 1001}, "beam_size=1001: give 1 (greedy) to 1000"),
        ({"no_repeat_ngram": -1}, "no_repeat_ngram=-1: give 0 (repeat freely) or more"),
        ({"min_length": -1}, "min_length=-1: give 0 to max_length=1024"),
        ({"min_length": 9, "max_length": 8}, "min_length=9: give 0 to max_length=8"),
        ({"min_ratio": -0.5}, "min_ratio=-0.5: give 0 to max_ratio=2.0"),
        ({"min_ratio": 1.5, "max_ratio": 1.0}, "min_ratio=1.5: give 0 to max_ratio=1.0"),
        ({"max_ratio": float("nan")}, "min_ratio=0.0: give 0 to max_ratio=nan"),
        ({"length_penalty": float("nan")}, "length_penalty=nan: give -10 to 10"),
        ({"length_penalty": -10.5}, "length_penalty=-10.5: give -10 to 10"),
        ({"length_penalty": 1e3}, "length_penalty=1000.0: give -10 to 10"),
    ],
    ids=lambda value: str(value) if isinstance(value, dict) else "",
)
def test_settings_that_find_nothing_are_refused_with_the_value_and_the_remedy(
    settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}[^\n]*$"):
        SearchConfig(**settings)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_probabilities_are_those_of_all_tokens_and_what_no_text_contains_is_ruled_out(dtype: torch.dtype) -> None:
    logits = torch.randn(3, 9, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = next_log_probs(logits)
    assert found.dtype == torch.float32
    never = [PAD_ID, UNK_ID, BOS_ID]
    assert (found[:, never] == float("-inf")).all()
    share = logits.float().softmax(-1)
    assert torch.allclose(found[:, EOS_ID:].exp(), share[:, EOS_ID:])  # what is ruled out is not given to the rest
