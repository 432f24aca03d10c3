"""Beam search against all sequences there are, and against a search of one sentence that never stops early."""

import pytest
import torch
from torch import Tensor

from const.token import BOS_ID, EOS_ID
from tests.tiny import MODEL, lively, sources
from tests.utils.search.tree import Tree
from utils.search.beam import beam_search
from utils.search.greedy import greedy_search
from utils.search.hypothesis import Hypothesis, SearchConfig

ALPHAS = pytest.mark.parametrize("alpha", [-0.8, 0.0, 0.6, 1.0, 2.5])
SRC = sources(5, 2, 7, 1, 3)


def source(row: int) -> tuple[int, ...]:
    return tuple(i for i in SRC[row].tolist() if i)


def same(found: list[Hypothesis], expected: list[Hypothesis]) -> bool:
    close = [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-4)
    return close and [ids for ids, _ in found] == [ids for ids, _ in expected]


@ALPHAS
@pytest.mark.parametrize(("vocab", "limits"), [(7, [4, 1, 3, 2, 4]), (5, [6, 3, 1, 5, 4])])
def test_a_beam_wider_than_the_tree_finds_every_sequence(vocab: int, limits: list[int], alpha: float) -> None:
    tree = Tree(vocab, seed=1)
    found = beam_search(tree, SRC, limits, SearchConfig(100, alpha))
    for row, limit in enumerate(limits):
        assert same(found[row], tree.all_translations(source(row), limit, alpha))


@ALPHAS
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_stopping_early_loses_nothing(width: int, alpha: float) -> None:
    limits = [9, 12, 5, 1, 8]
    saved = 0
    for seed in range(8):
        tree = Tree(8, seed, eos=1.0)
        found = beam_search(tree, SRC, limits, SearchConfig(width, alpha))
        saved += max(limits) - len(tree.steps)
        for row, limit in enumerate(limits):
            assert same(found[row], tree.patient_beam(source(row), limit, alpha, width)), (seed, row)
    assert saved > 0 or alpha > 1  # such a penalty leaves hope to the end


@pytest.mark.parametrize("seed", range(5))
def test_a_beam_of_one_is_greedy(seed: int) -> None:
    config, limits = SearchConfig(1, length_penalty=0.0), [9, 12, 5, 1, 8]
    for model in (Tree(8, seed), lively(MODEL, 20, 23, seed)):
        best = [n_best[0] for n_best in beam_search(model, SRC, limits, config)]  # type: ignore[misc]
        assert same(best, greedy_search(model, SRC, limits, config))  # type: ignore[misc]


def test_a_vocabulary_smaller_than_the_beam_gives_what_it_has() -> None:
    found = beam_search(Tree(5), SRC[:1], [20], SearchConfig(4, 0.0))[0]
    assert len({tuple(ids) for ids, _ in found}) == len(found) == 4
    found = beam_search(Tree(4), SRC[:1], [3], SearchConfig(4, 0.0))[0]  # it can say </s> and nothing else
    assert [ids for ids, _ in found] == [[]]


def test_a_step_reads_one_token_a_row_and_there_are_no_more_steps_than_tokens() -> None:
    tree, width = Tree(9, eos=-100.0), 3
    beam_search(tree, SRC, [6, 9, 4, 8, 7], SearchConfig(width))
    assert tree.starts == [5]
    assert [len(tokens) for tokens in tree.steps] == [5, 15, 15, 15, 12, 12, 9, 6, 3]
    assert tree.steps[0] == [BOS_ID] * 5


@pytest.mark.parametrize("eos", [-1000.0, 1.0])
def test_only_words_are_said_and_what_has_not_ended_at_its_limit_is_cut_there(eos: float) -> None:
    limits = [6, 9, 4, 8, 1]
    found = beam_search(Tree(9, eos=eos, forbidden=50.0), SRC, limits, SearchConfig(3))
    for n_best, limit in zip(found, limits, strict=True):
        assert 1 <= len(n_best) <= 3
        assert all(min(ids, default=4) > EOS_ID for ids, _ in n_best)
        assert all(len(ids) == limit if eos < 0 else len(ids) < max(limit, 2) for ids, _ in n_best)
        assert n_best == sorted(n_best, key=lambda hypothesis: -hypothesis.score)
        assert n_best[0].score < -10  # the share of what was ruled out is not given to the rest


def test_company_and_order_in_the_batch_do_not_matter() -> None:
    model, config, limits = lively(MODEL, 20, 23), SearchConfig(4), [9, 12, 5, 7, 8]
    together = beam_search(model, SRC, limits, config)
    order = [3, 0, 4, 2, 1]
    shuffled = beam_search(model, SRC[order], [limits[i] for i in order], config)
    for place, row in enumerate(order):
        assert same(shuffled[place], together[row])
        assert same(beam_search(model, torch.tensor([source(row)]), [limits[row]], config)[0], together[row])
    assert len({tuple(n_best[0].ids) for n_best in together}) == len(SRC)


def test_a_source_is_read_once_and_never_copied_for_a_beam(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lively(MODEL, 20, 23)
    read: list[int] = []
    shapes: list[tuple[int, int]] = []
    encode, step = model.encode, model.step

    def watched_encode(src: Tensor) -> Tensor:
        read.append(len(src))
        return encode(src)

    def watched_step(tokens, state):  # type: ignore[no-untyped-def]
        shapes.append((len(state.source[0].key), len(tokens)))
        return step(tokens, state)

    monkeypatch.setattr(model, "encode", watched_encode)
    monkeypatch.setattr(model, "step", watched_step)
    beam_search(model, SRC, [9, 12, 5, 7, 8], SearchConfig(4))
    assert read == [5]
    assert shapes[0] == (5, 5)
    assert shapes[1] == (5, 20)
    assert all(rows == 4 * sentences for sentences, rows in shapes[1:])
    assert shapes[-1][0] < 5
