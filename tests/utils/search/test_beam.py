"""Beam search against all sequences there are, and against a search of one sentence that never stops early."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from const.token import BOS_ID, EOS_ID
from tests.tiny import MODEL, lively, sources
from tests.utils.search.tree import Ids, Tree, real, repeats, up_to
from utils.search.beam import beam_search
from utils.search.constraint import Bounds, Hypothesis, SearchConfig
from utils.search.sampling import greedy_search

SRC = sources(5, 2, 7, 1, 3)
SOURCES = [real(row) for row in SRC]

penalised = pytest.mark.parametrize(
    "config",
    [
        *(SearchConfig(length_penalty=alpha) for alpha in (-0.8, 0.0, 0.6, 1.0, 2.5)),
        *(SearchConfig(length_penalty=alpha, normalization="length") for alpha in (-0.8, 0.6, 1.0, 2.5)),
    ],
    ids=lambda config: f"{config.normalization} {config.length_penalty}",
)
PREFIXES: list[Ids] = [(), (4,), (5, 4, 4, 6), (6, 6), ()]


def same(found: list[Hypothesis], expected: list[Hypothesis]) -> bool:
    close = [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-4)
    return close and [ids for ids, _ in found] == [ids for ids, _ in expected]


# oracle


@penalised
@pytest.mark.parametrize(("vocab", "bounds"), [(7, up_to(4, 1, 3, 2, 4)), (5, up_to(6, 3, 1, 5, 4))])
def test_a_beam_wider_than_the_tree_finds_every_sequence(
    vocab: int, bounds: list[Bounds], config: SearchConfig
) -> None:
    tree = Tree(vocab, seed=1)
    config = replace(config, beam_size=100)
    found = beam_search(tree, SRC, bounds, config)
    for row, source in enumerate(SOURCES):
        assert same(found[row], tree.all_translations(source, config, bounds[row]))


@penalised
@pytest.mark.parametrize("ngram", [0, 1, 2, 3])
def test_nor_is_anything_lost_or_added_by_rules(ngram: int, config: SearchConfig) -> None:
    bounds = [Bounds(2, 4), Bounds(0, 2), Bounds(1, 3), Bounds(3, 4), Bounds(2, 3)]
    tree, config = Tree(7, seed=2), replace(config, beam_size=100, no_repeat_ngram=ngram)
    found = beam_search(tree, SRC, bounds, config, PREFIXES)
    for row, source in enumerate(SOURCES):
        assert same(found[row], tree.all_translations(source, config, bounds[row], PREFIXES[row])), row


@penalised
@pytest.mark.parametrize("width", [1, 2, 3, 5])
def test_stopping_early_loses_nothing(width: int, config: SearchConfig) -> None:
    bounds, config = up_to(9, 12, 5, 1, 8), replace(config, beam_size=width)
    saved = 0
    for seed in range(6):
        tree = Tree(8, seed, eos=1.0)
        found = beam_search(tree, SRC, bounds, config)
        saved += 12 - len(tree.steps)
        for row, source in enumerate(SOURCES):
            assert same(found[row], tree.patient_beam(source, config, bounds[row])), (seed, row)
    assert saved > 0 or config.length_penalty >= 1  # such a penalty leaves hope to the end


@settings(max_examples=60)
@given(
    seed=st.integers(0, 99),
    eos=st.sampled_from([-2.0, 0.0, 2.0]),
    vocab=st.integers(5, 9),
    rows=st.lists(
        st.tuples(st.integers(0, 4), st.integers(0, 8), st.integers(1, 9), st.lists(st.integers(4, 8), max_size=3)),
        min_size=1,
        max_size=4,
    ),
    config=st.builds(
        SearchConfig,
        beam_size=st.integers(1, 6),
        length_penalty=st.floats(-1.5, 2.5),
        normalization=st.sampled_from(["gnmt", "length"]),
        no_repeat_ngram=st.integers(0, 3),
    ),
)
def test_it_is_the_patient_search_whatever_is_asked(
    seed: int, eos: float, vocab: int, rows: list[tuple[int, int, int, list[int]]], config: SearchConfig
) -> None:
    tree = Tree(vocab, seed, eos)
    src = sources(*(row[0] for row in rows), seed=seed)
    bounds = [Bounds(min(least, most - 1), most) for _, least, most, _ in rows]
    prefixes = [tuple(min(token, vocab - 1) for token in row[-1]) for row in rows]
    found = beam_search(tree, src, bounds, config, prefixes)
    for row, n_best in enumerate(found):
        ours, theirs = (
            [score for _, score in hypotheses]
            for hypotheses in (n_best, tree.patient_beam(real(src[row]), config, bounds[row], prefixes[row]))
        )
        assert ours == pytest.approx(theirs, abs=1e-4)
        assert len({tuple(ids) for ids, _ in n_best}) == len(n_best)


@penalised
def test_fewer_that_must_be_the_best_are_found_sooner(config: SearchConfig) -> None:
    bounds, config = up_to(9, 12, 5, 1, 8), replace(config, beam_size=5)
    spoken = []
    for wanted in (1, 3, 5, 9, None):
        spoken.append(0)
        for seed in range(4):
            tree = Tree(8, seed, eos=1.0)
            found = beam_search(tree, SRC, bounds, config, n_best=wanted)
            spoken[-1] += sum(map(len, tree.steps))
            for row, source in enumerate(SOURCES):
                assert same(found[row][:wanted], tree.patient_beam(source, config, bounds[row])[:wanted])
    assert spoken == sorted(spoken)
    assert spoken[0] < spoken[-1] or config.length_penalty > 1
    assert spoken[2] == spoken[3] == spoken[4]


# greedy search


@pytest.mark.parametrize("alpha", [0.0, -0.8])
@pytest.mark.parametrize("seed", range(4))
def test_a_beam_of_one_is_greedy_where_nothing_is_won_by_length(seed: int, alpha: float) -> None:
    """With α > 0 it goes on behind a </s>, in the hope that the penalty of a longer translation makes good."""
    config, bounds = SearchConfig(1, length_penalty=alpha), up_to(9, 12, 5, 1, 8)
    for model in (Tree(8, seed), lively(MODEL, 20, 23, seed)):
        best = [n_best[0] for n_best in beam_search(model, SRC, bounds, config)]  # type: ignore[misc]
        assert same(best, greedy_search(model, SRC, bounds, config))  # type: ignore[misc]


def test_where_length_wins_a_beam_of_one_looks_behind_the_end_that_greedy_search_stops_at() -> None:
    config, bounds = SearchConfig(1, length_penalty=2.5), up_to(9, 12, 5, 1, 8)
    better = 0
    for seed in range(4):
        tree = Tree(8, seed)
        for (ours,), theirs in zip(
            beam_search(tree, SRC, bounds, config), greedy_search(tree, SRC, bounds, config), strict=True
        ):
            assert ours.score >= theirs.score - 1e-4
            better += len(ours.ids) > len(theirs.ids) and ours.score > theirs.score
    assert better > 0


# what is found


@pytest.mark.parametrize("eos", [-1000.0, 1.0])
def test_only_words_are_said_and_what_has_not_ended_before_its_limit_ends_there(eos: float) -> None:
    bounds = up_to(6, 9, 4, 8, 1)
    found = beam_search(Tree(9, eos=eos, forbidden=50.0), SRC, bounds, SearchConfig(3))
    for n_best, (_, most) in zip(found, bounds, strict=True):
        assert 1 <= len(n_best) <= 3
        assert all(min(ids, default=4) > EOS_ID for ids, _ in n_best)
        assert all(len(ids) == most - 1 if eos < 0 else len(ids) < most for ids, _ in n_best)
        assert n_best[0].score < -10  # the share of what was ruled out is not given to the rest


@pytest.mark.parametrize("width", [1, 2, 4, 7])
def test_the_best_come_first_none_twice_and_no_more_than_the_beam_is_wide(width: int) -> None:
    for seed in range(4):
        for n_best in beam_search(Tree(6, seed), SRC, up_to(6, 9, 4, 8, 7), SearchConfig(width)):
            assert 1 <= len(n_best) <= width
            assert all(a.score >= b.score > float("-inf") for a, b in pairwise(n_best))
            assert len({tuple(ids) for ids, _ in n_best}) == len(n_best)


def test_a_vocabulary_smaller_than_the_beam_gives_what_it_has() -> None:
    found = beam_search(Tree(5), SRC[:1], up_to(20), SearchConfig(4, 0.0))[0]
    assert len({tuple(ids) for ids, _ in found}) == len(found) == 4
    found = beam_search(Tree(4), SRC[:1], up_to(3), SearchConfig(4, 0.0))[0]  # it can say </s> and nothing else
    assert [ids for ids, _ in found] == [[]]


@pytest.mark.parametrize("ngram", [1, 2, 3])
def test_nothing_is_said_twice_and_who_has_nothing_left_to_say_ends(ngram: int) -> None:
    stuck = 0
    for bounds in up_to(*[30] * 5), [Bounds(28, 30)] * 5:
        for n_best in beam_search(Tree(6, eos=-4.0), SRC, bounds, SearchConfig(3, no_repeat_ngram=ngram)):
            assert n_best
            for ids, _ in n_best:
                assert not repeats(tuple(ids), ngram)
                nothing_left = all(repeats((*ids, word), ngram) for word in (4, 5))
                assert nothing_left or len(ids) >= bounds[0].least
                stuck += nothing_left
    assert stuck > 10


# the batch


def test_a_step_reads_one_token_a_row_and_whoever_has_finished_leaves() -> None:
    tree, width = Tree(9, eos=-100.0), 3
    beam_search(tree, SRC, up_to(6, 9, 4, 8, 7), SearchConfig(width))
    assert tree.starts == [5]
    assert [len(tokens) for tokens in tree.steps] == [5, 15, 15, 15, 12, 12, 9, 6, 3]
    assert tree.steps[0] == [BOS_ID] * 5


@pytest.mark.parametrize("config", [SearchConfig(4), SearchConfig(4, no_repeat_ngram=2)], ids=["free", "no repeats"])
def test_company_and_order_in_the_batch_do_not_matter(config: SearchConfig) -> None:
    model = lively(MODEL, 20, 23)
    bounds = [Bounds(3, 9), Bounds(0, 12), Bounds(4, 5), Bounds(2, 7), Bounds(1, 8)]
    together = beam_search(model, SRC, bounds, config, PREFIXES)
    order = [3, 0, 4, 2, 1]
    shuffled = beam_search(model, SRC[order], [bounds[i] for i in order], config, [PREFIXES[i] for i in order])
    for place, row in enumerate(order):
        assert same(shuffled[place], together[row])
        alone = beam_search(model, torch.tensor([SOURCES[row]]), [bounds[row]], config, [PREFIXES[row]])
        assert same(alone[0], together[row])
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
    beam_search(model, SRC, up_to(9, 12, 5, 7, 8), SearchConfig(4))
    assert read == [5]
    assert shapes[0] == (5, 5)
    assert shapes[1] == (5, 20)
    assert all(rows == 4 * sentences for sentences, rows in shapes[1:])
    assert shapes[-1][0] < 5


def test_an_end_that_is_as_likely_as_going_on_is_an_end() -> None:
    class Even(Tree):
        def logits(self, source: Ids, said: Ids) -> list[float]:  # noqa: ARG002
            return [0.0] * self.vocab

    (found,) = beam_search(Even(5), SRC[:1], up_to(3), SearchConfig(1, 0.0))
    assert found[0].ids == []
