import pytest
import torch

from const.token import BOS_ID, EOS_ID
from tests.tiny import MODEL, lively, sources
from tests.utils.search.tree import Tree
from utils.search.greedy import greedy_search
from utils.search.hypothesis import SearchConfig, length_penalty

PLAIN = SearchConfig(beam_size=1, length_penalty=0.0)
SRC = sources(5, 2, 7, 1, 3)
LIMITS = [6, 9, 4, 8, 7]


def source(row: int) -> tuple[int, ...]:
    return tuple(i for i in SRC[row].tolist() if i)


@pytest.mark.parametrize("alpha", [0.0, 0.6, 1.0])
@pytest.mark.parametrize("seed", range(4))
def test_each_token_is_the_likeliest_after_those_before_it(seed: int, alpha: float) -> None:
    tree = Tree(vocab=9, seed=seed)
    for row, found in enumerate(greedy_search(tree, SRC, LIMITS, SearchConfig(length_penalty=alpha))):
        ids: list[int] = []
        total, token = 0.0, BOS_ID
        while token != EOS_ID and len(ids) < LIMITS[row]:
            log_probs = tree.log_probs(source(row), tuple(ids))
            token = max(log_probs, key=log_probs.__getitem__)
            total += log_probs[token]
            ids.append(token)
        assert found.ids == [i for i in ids if i != EOS_ID]
        assert found.score == pytest.approx(total / ((5 + len(ids)) / 6) ** alpha)


def test_a_step_reads_one_token_a_row_that_is_not_finished() -> None:
    tree = Tree(vocab=9, eos=1.0)
    found = greedy_search(tree, SRC, LIMITS, PLAIN)
    lengths = [min(len(ids) + 1, limit) for (ids, _), limit in zip(found, LIMITS, strict=True)]
    assert tree.starts == [len(SRC)]
    assert [len(tokens) for tokens in tree.steps] == [
        sum(length > step for length in lengths) for step in range(max(lengths))
    ]
    assert len({*lengths}) > 2


def test_it_begins_with_the_start_symbol_whatever_the_source() -> None:
    tree = Tree(vocab=9)
    greedy_search(tree, SRC, LIMITS, PLAIN)
    assert tree.steps[0] == [BOS_ID] * len(SRC)


def test_nothing_ends_behind_its_limit_and_nothing_is_said_that_no_text_contains() -> None:
    tree = Tree(vocab=9, eos=-100.0, forbidden=50.0)
    found = greedy_search(tree, SRC, LIMITS, PLAIN)
    assert [len(ids) for ids, _ in found] == LIMITS
    assert min(min(ids) for ids, _ in found) > EOS_ID
    assert all(score < -40 for _, score in found)  # the share of what was ruled out is not given to the rest


def test_company_and_order_in_the_batch_do_not_matter() -> None:
    model = lively(MODEL, 20, 23)
    together = greedy_search(model, SRC, LIMITS, PLAIN)
    order = [3, 0, 4, 2, 1]
    shuffled = greedy_search(model, SRC[order], [LIMITS[i] for i in order], PLAIN)
    alone = [
        greedy_search(model, torch.tensor([source(row)]), LIMITS[row : row + 1], PLAIN)[0] for row in range(len(SRC))
    ]
    assert [ids for ids, _ in shuffled] == [together[i].ids for i in order]
    assert [ids for ids, _ in alone] == [ids for ids, _ in together]
    assert [score for _, score in alone] == pytest.approx([score for _, score in together], abs=1e-4)
    assert len({tuple(ids) for ids, _ in together}) == len(SRC)


def test_the_length_penalty_is_that_of_gnmt() -> None:
    assert [length_penalty(n, 0.6) for n in (1, 7, 13)] == pytest.approx([1, 2**0.6, 3**0.6])
    assert length_penalty(50, 0) == 1


def test_the_limit_grows_with_the_source() -> None:
    config = SearchConfig(max_ratio=1.5)
    assert [config.limit(n) for n in (1, 2, 9)] == [11, 13, 23]


def test_a_beam_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match=r"beam_size=0: give 1 \(greedy\) or more"):
        SearchConfig(beam_size=0)
