import pytest
import torch

from const.token import BOS_ID, EOS_ID
from tests.tiny import MODEL, lively, sources
from tests.utils.search.tree import Ids, Tree, real, up_to
from utils.search.constraint import Bounds, SearchConfig
from utils.search.sampling import greedy_search

PLAIN = SearchConfig(beam_size=1, length_penalty=0.0)
SRC = sources(5, 2, 7, 1, 3)
SOURCES = [real(row) for row in SRC]
FREE = up_to(6, 9, 4, 8, 7)
BOUNDS = [Bounds(3, 6), Bounds(0, 9), Bounds(2, 3), Bounds(7, 8), Bounds(0, 2)]
PREFIXES: list[Ids] = [(), (4,), (5, 4, 4, 6), (6, 6), ()]


@pytest.mark.parametrize("ngram", [0, 1, 2])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("seed", range(4))
def test_each_token_is_the_likeliest_that_may_follow_those_before_it(seed: int, alpha: float, ngram: int) -> None:
    tree, config = Tree(vocab=9, seed=seed), SearchConfig(length_penalty=alpha, no_repeat_ngram=ngram)
    nothing: list[Ids] = [()] * len(SRC)
    for bounds, prefixes in (FREE, nothing), (BOUNDS, PREFIXES):
        found = greedy_search(tree, SRC, bounds, config, prefixes)
        expected = [tree.greedy(*row) for row in zip(SOURCES, [config] * len(SRC), bounds, prefixes, strict=True)]
        assert [ids for ids, _ in found] == [ids for ids, _ in expected]
        assert [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-5)
    assert greedy_search(tree, SRC, FREE, config) == greedy_search(tree, SRC, FREE, config, nothing)


def test_a_step_reads_one_token_a_row_that_is_not_finished() -> None:
    tree = Tree(vocab=9, eos=1.0)
    found = greedy_search(tree, SRC, FREE, PLAIN)
    lengths = [len(ids) + 1 for ids, _ in found]
    assert tree.starts == [len(SRC)]
    assert [len(tokens) for tokens in tree.steps] == [
        sum(length > step for length in lengths) for step in range(max(lengths))
    ]
    assert len({*lengths}) > 2


def test_it_begins_with_the_start_symbol_whatever_the_source() -> None:
    tree = Tree(vocab=9)
    greedy_search(tree, SRC, FREE, PLAIN)
    assert tree.steps[0] == [BOS_ID] * len(SRC)


def test_nothing_ends_behind_its_limit_and_nothing_is_said_that_no_text_contains() -> None:
    tree = Tree(vocab=9, eos=-100.0, forbidden=50.0)
    found = greedy_search(tree, SRC, FREE, PLAIN)
    assert [len(ids) + 1 for ids, _ in found] == [most for _, most in FREE]
    assert min(min(ids) for ids, _ in found) > EOS_ID
    assert all(score < -40 for _, score in found)  # the share of what was ruled out is not given to the rest


def test_company_and_order_in_the_batch_do_not_matter() -> None:
    model = lively(MODEL, 20, 23)
    together = greedy_search(model, SRC, FREE, PLAIN)
    order = [3, 0, 4, 2, 1]
    shuffled = greedy_search(model, SRC[order], [FREE[i] for i in order], PLAIN)
    alone = [
        greedy_search(model, torch.tensor([source]), [bounds], PLAIN)[0]
        for source, bounds in zip(SOURCES, FREE, strict=True)
    ]
    assert [ids for ids, _ in shuffled] == [together[i].ids for i in order]
    assert [ids for ids, _ in alone] == [ids for ids, _ in together]
    assert [score for _, score in alone] == pytest.approx([score for _, score in together], abs=1e-4)
    assert len({tuple(ids) for ids, _ in together}) == len(SRC)
