"""Token after token by any choice: a choice that always takes what ranks the same is one whose end is known."""

import math

import pytest
import torch
from torch import Tensor

from const.token import BOS_ID, EOS_ID, PAD_ID
from tests.tiny import sources
from tests.utils.search.tree import Ids, Tree, TreeState, real, repeats, up_to
from utils.search.beam import beam_search
from utils.search.constraint import NEVER, Bounds, Hypothesis, SearchConfig
from utils.search.sampling import SamplingConfig, greedy_search, sample, walk

SRC = sources(5, 2, 7, 1, 3)
SOURCES = [real(row) for row in SRC]
BOUNDS = [Bounds(3, 6), Bounds(0, 9), Bounds(2, 3), Bounds(7, 8), Bounds(0, 2)]
PREFIXES: list[Ids] = [(), (4,), (5, 4, 4, 6), (6, 6), ()]
WIDTH = 3


def by_rank(log_probs: Tensor, _sentences: Tensor, _t: int) -> Tensor:
    """Row r says what is the r-th likeliest of what it may say, or the least likely."""
    ranked = log_probs.argsort(-1, descending=True)
    last = (log_probs > NEVER).sum(-1) - 1
    return ranked.gather(-1, torch.minimum(torch.arange(log_probs.size(1)), last)[..., None])[..., 0]


def expected(tree: Tree, source: Ids, rank: int, config: SearchConfig, bounds: Bounds, prefix: Ids) -> Hypothesis:
    said: list[int] = []
    total = 0.0
    while EOS_ID not in said:
        log_probs = tree.allowed(source, tuple(said), config, bounds, prefix)
        ranked = sorted(log_probs, key=log_probs.__getitem__, reverse=True)
        said.append(ranked[min(rank, len(ranked) - 1)])
        total += log_probs[said[-1]]
    return Hypothesis(said[:-1], total / config.penalty(len(said)))


@pytest.mark.parametrize("ngram", [0, 1, 2])
@pytest.mark.parametrize("seed", range(3))
def test_each_row_goes_its_own_way_by_the_rules_of_its_sentence(seed: int, ngram: int) -> None:
    tree, config = Tree(8, seed, eos=1.0), SearchConfig(length_penalty=0.6, no_repeat_ngram=ngram)
    found = walk(tree, SRC, BOUNDS, config, by_rank, WIDTH, PREFIXES)
    for row, hypotheses in enumerate(found):
        for rank, ours in enumerate(hypotheses):
            theirs = expected(tree, SOURCES[row], rank, config, BOUNDS[row], PREFIXES[row])
            assert ours.ids == theirs.ids
            assert ours.score == pytest.approx(theirs.score, abs=1e-5)
        assert len(hypotheses) == WIDTH


class Nobody(Tree):
    """Says what no number is."""

    def step(self, tokens: Tensor, state: TreeState) -> tuple[Tensor, TreeState]:
        logits, state = super().step(tokens, state)
        return logits * math.nan, state


def test_what_is_no_number_is_no_translation() -> None:
    told = r"^the network's probabilities are not finite numbers: use precision fp32"
    with pytest.raises(ValueError, match=told):
        greedy_search(Nobody(8), SRC, BOUNDS, SearchConfig())
    with pytest.raises(ValueError, match=told):
        sample(Nobody(8), SRC, BOUNDS, SearchConfig(), SamplingConfig(n_samples=2), range(len(SRC)))
    with pytest.raises(ValueError, match=told):
        beam_search(Nobody(8), SRC, BOUNDS, SearchConfig(beam_size=2))


def test_a_sentence_leaves_with_the_last_of_its_rows() -> None:
    tree, config = Tree(8, eos=1.0), SearchConfig()
    found = walk(tree, SRC, up_to(6, 9, 4, 8, 7), config, by_rank, WIDTH)
    longest = [max(len(ids) + 1 for ids, _ in hypotheses) for hypotheses in found]
    assert tree.starts == [len(SRC)]
    assert tree.steps[0] == [BOS_ID] * WIDTH * len(SRC)
    assert [len(step) for step in tree.steps] == [
        WIDTH * sum(length > t for length in longest) for t in range(max(longest))
    ]
    assert len({*longest}) > 2
    assert any(len(ids) + 1 < longest[0] for ids, _ in found[0])  # a row that waits for others


def test_a_choice_is_told_whose_turn_it_is_and_how_much_was_said() -> None:
    told: list[tuple[list[int], int]] = []

    def watched(log_probs: Tensor, sentences: Tensor, t: int) -> Tensor:
        told.append((sentences.tolist(), t))
        assert log_probs.shape == (len(sentences), 1, 8)
        return by_rank(log_probs, sentences, t)

    walk(Tree(8, eos=-50.0), SRC, up_to(6, 2, 4, 1, 5), SearchConfig(), watched)
    assert told == [([0, 1, 2, 3, 4], 0), ([0, 1, 2, 4], 1), ([0, 2, 4], 2), ([0, 2, 4], 3), ([0, 4], 4), ([0], 5)]


@pytest.mark.parametrize("ngram", [1, 2, 3])
def test_nothing_is_said_twice(ngram: int) -> None:
    found = walk(Tree(6, eos=-9.0), SRC, up_to(*[30] * 5), SearchConfig(no_repeat_ngram=ngram), by_rank, 2)
    assert not any(repeats(tuple(ids), ngram) for hypotheses in found for ids, _ in hypotheses)
    assert all(PAD_ID not in ids for hypotheses in found for ids, _ in hypotheses)
