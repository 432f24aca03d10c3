"""A batch shrinks through few heights, and loses no sentence that is under way."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.utils.search.tree import Tree
from utils.search.beam import batch_height, beam_search, who_stays
from utils.search.constraint import Bounds, SearchConfig
from utils.search.sampling import greedy_search


@given(st.lists(st.booleans(), min_size=1, max_size=80))
def test_whoever_is_under_way_stays_in_order(over: list[bool]) -> None:
    stay = who_stays(torch.tensor(over))
    alive = [i for i, is_over in enumerate(over) if not is_over]
    if stay is None:
        assert batch_height(len(alive)) >= len(over)
        return
    kept = stay.tolist()
    assert kept == sorted(set(kept))
    assert set(alive) <= set(kept)
    assert len(kept) == batch_height(len(alive)) < len(over)


def test_heights_are_few_and_close() -> None:
    heights = [batch_height(n) for n in range(1, 1025)]
    assert all(n <= height <= 1.25 * n for n, height in enumerate(heights, 1))
    assert len(set(heights)) < 40
    assert heights[:16] == [1, 2, 3, 4, 5, 6, 7, 8, 10, 10, 12, 12, 14, 14, 16, 16]


def test_the_steps_of_a_search_have_few_heights() -> None:
    src, bounds = torch.arange(4, 104)[:, None], [Bounds(0, 40)] * 100
    for width in (1, 3):
        tree = Tree(7, eos=-1.0)
        if width == 1:
            greedy_search(tree, src, bounds, SearchConfig(beam_size=1))
        else:
            beam_search(tree, src, bounds, SearchConfig(beam_size=width))
        heights = {len(tokens) for tokens in tree.steps}
        assert len(heights) > 5
        assert heights <= {100} | {width * batch_height(n) for n in range(1, 101)} | {width * 100}
