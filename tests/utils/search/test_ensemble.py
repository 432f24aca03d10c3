"""Several models as one, against one and against the mean worked out by hand."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from const.token import BOS_ID, EOS_ID
from tests.tiny import MODEL, lively, sources
from tests.utils.search.tree import Ids, Tree, real, up_to
from utils.search.beam import beam_search
from utils.search.constraint import Bounds, Hypothesis, Searchable, SearchConfig
from utils.search.sampling import SamplingConfig, greedy_search, sample
from utils.search.wrapped import Ensemble

SRC = sources(5, 2, 7, 1, 3)
BOUNDS = up_to(6, 9, 4, 8, 7)
CONFIG = SearchConfig(3)


def greedy(model: Searchable[Any]) -> list[list[Hypothesis]]:
    return [[best] for best in greedy_search(model, SRC, BOUNDS, CONFIG)]


def beam(model: Searchable[Any]) -> list[list[Hypothesis]]:
    return beam_search(model, SRC, BOUNDS, CONFIG)


def sampling(model: Searchable[Any]) -> list[list[Hypothesis]]:
    return sample(model, SRC, BOUNDS, CONFIG, SamplingConfig(4), range(5))


searches = pytest.mark.parametrize("search", [greedy, beam, sampling])
one = pytest.mark.parametrize("model", [Tree(9), lively(MODEL, 20, 23)], ids=["tree", "transformer"])


def assert_same(found: list[list[Hypothesis]], expected: list[list[Hypothesis]]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert [ids for ids, _ in ours] == [ids for ids, _ in theirs]
        assert [score for _, score in ours] == pytest.approx([score for _, score in theirs], abs=1e-4)


@searches
@one
@pytest.mark.parametrize("n", [1, 2, 3])
def test_models_that_agree_say_what_each_of_them_says(search, model: Searchable[Any], n: int) -> None:  # type: ignore[no-untyped-def]
    assert_same(search(Ensemble([model] * n)), search(model))


class Mean(Tree):
    """The tree whose probabilities are the mean of those of other trees."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        super().__init__(trees[0].vocab)
        self.trees = trees

    def logits(self, source: Ids, said: Ids) -> list[float]:
        probs = [torch.tensor(tree.logits(source, said), dtype=torch.float64).softmax(-1) for tree in self.trees]
        return torch.stack(probs).mean(0).log().tolist()


@searches
def test_models_that_do_not_agree_are_the_mean_of_their_probabilities(search) -> None:  # type: ignore[no-untyped-def]
    trees = [Tree(9, seed=1), Tree(9, seed=2, eos=1.0), Tree(9, seed=3, forbidden=1.0)]
    found = search(Ensemble(trees))
    assert_same(found, search(Mean(trees)))
    assert all(found != search(tree) for tree in trees)


def test_a_wide_beam_finds_every_translation_with_the_mean_of_the_probabilities() -> None:
    trees, bounds, config = [Tree(7, seed=1), Tree(7, seed=2)], [Bounds(1, 4)] * 5, SearchConfig(60)
    expected = [Mean(trees).all_translations(real(row), config, bounds[0]) for row in SRC]
    assert_same(beam_search(Ensemble(trees), SRC, bounds, config), expected)


def test_of_networks_too() -> None:
    """The score of what two networks find: log ((p + q) / 2), token by token, from their full passes."""
    networks = [lively(MODEL, 20, 23, seed) for seed in (1, 2)]
    found = beam_search(Ensemble(networks), SRC, BOUNDS, CONFIG)
    for row, n_best in zip(SRC, found, strict=True):
        for ids, score in n_best:
            tgt = torch.tensor([[BOS_ID, *ids]])
            with torch.no_grad():
                probs = sum(network(torch.tensor([real(row)]), tgt)[0].softmax(-1) for network in networks) / 2
            said = torch.tensor([*ids, EOS_ID])
            assert isinstance(probs, Tensor)
            total = probs.gather(-1, said[:, None]).log().sum().item()
            assert score == pytest.approx(total / CONFIG.penalty(len(said)), abs=1e-4)
    assert len({(*n_best[0].ids,) for n_best in found}) > 2


def test_one_that_is_sure_does_not_silence_the_other() -> None:
    """The mean is of probabilities, not of their logarithms: what one model rules out has half of the other's."""

    class Sure(Tree):
        def logits(self, source: Ids, said: Ids) -> list[float]:  # noqa: ARG002
            return [0.0 if token == EOS_ID else -math.inf for token in range(self.vocab)]

    tree = Tree(9)
    found = beam_search(Ensemble([tree, Sure(9)]), SRC[:1], up_to(2), SearchConfig(6, length_penalty=0.0))[0]
    probs = tree.log_probs(real(SRC[0]), ())
    scores = {(*ids,): score for ids, score in found}
    assert scores[()] == pytest.approx(math.log((1 + math.exp(probs[EOS_ID])) / 2), abs=1e-5)
    for token in range(4, 9):
        last = tree.log_probs(real(SRC[0]), (token,))[EOS_ID]
        expected = probs[token] - math.log(2) + math.log((1 + math.exp(last)) / 2)
        assert scores[(token,)] == pytest.approx(expected, abs=1e-5)
