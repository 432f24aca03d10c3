"""The rules against themselves, token by token: what a row may say, and that it is as likely as before."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from const.token import EOS_ID
from tests.utils.search.tree import Ids, Tree
from utils.search.constraint import NEVER, Bounds, Constraint, SearchConfig

CPU = torch.device("cpu")
VOCAB = 7
WORDS = st.integers(4, VOCAB - 1)


def allowed(constraint: Constraint, *said: Ids) -> list[list[int]]:
    """What the rows of the first sentence may say, all tokens of a text being likely."""
    log_probs = torch.full((1, len(said), VOCAB), -2.0)
    log_probs[..., :EOS_ID] = NEVER
    constraint.apply(log_probs, torch.tensor([said]).view(1, len(said), -1).long())
    return [row.isfinite().nonzero()[:, 0].tolist() for row in log_probs[0]]


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 6), st.integers(1, 8), st.lists(WORDS, max_size=4).map(tuple)), min_size=1, max_size=4
    ),
    ngram=st.integers(0, 3),
    width=st.integers(1, 3),
    data=st.data(),
)
def test_what_is_allowed_is_what_the_rules_say_and_keeps_its_probability(
    rows: list[tuple[int, int, Ids]], ngram: int, width: int, data: st.DataObject
) -> None:
    tree, config = Tree(VOCAB), SearchConfig(no_repeat_ngram=ngram)
    bounds, prefixes = [Bounds(least, most) for least, most, _ in rows], [row[-1] for row in rows]
    constraint = Constraint(bounds, CPU, prefixes, ngram)
    t = data.draw(st.integers(0, constraint.longest - 1))
    said = [
        [(*prefix, *data.draw(st.tuples(*[WORDS] * t)))[:t] for _ in range(width)] for prefix in prefixes
    ]  # as rows do that have kept the rules so far
    kept = [tree.log_probs((row,), ids) for row, sentence in enumerate(said) for ids in sentence]
    full = torch.tensor([[log_probs.get(token, NEVER) for token in range(VOCAB)] for log_probs in kept])
    found = full.view(len(rows), width, VOCAB).clone()
    constraint.apply(found, torch.tensor(said).view(len(rows), width, t).long())
    for row, sentence in enumerate(said):
        for place, ids in enumerate(sentence):
            expected = tree.allowed((row,), ids, config, bounds[row], prefixes[row])
            ours = {token: p for token, p in enumerate(found[row, place].tolist()) if p > NEVER}
            assert ours == pytest.approx(expected), (row, place)


def test_nothing_ends_before_its_least_nor_goes_on_behind_its_most() -> None:
    constraint = Constraint([Bounds(2, 4)], CPU)
    anything = [3, 4, 5, 6]
    beginnings: list[Ids] = [(), (4,), (4, 4), (4, 4, 4)]
    assert [allowed(constraint, said)[0] for said in beginnings] == [[4, 5, 6], [4, 5, 6], anything, [3]]
    assert constraint.longest == 4


def test_a_prefix_longer_than_its_bounds_stretches_them() -> None:
    both = Constraint([Bounds(0, 2), Bounds(1, 3)], CPU, [[5, 5, 5], []])
    assert both.most.tolist() == [4, 3]
    assert both.longest == 4
    constraint = Constraint([Bounds(0, 2)], CPU, [[5, 5, 5]])
    beginnings: list[Ids] = [(), (5,), (5, 5), (5, 5, 5)]
    assert [allowed(constraint, said)[0] for said in beginnings] == [[5], [5], [5], [3]]


def test_a_prefix_may_repeat_itself_and_what_follows_may_not() -> None:
    constraint = Constraint([Bounds(0, 9)], CPU, [[4, 4, 4, 4]], no_repeat_ngram=2)
    assert allowed(constraint, (4, 4, 4)) == [[4]]
    assert allowed(constraint, (4, 4, 4, 4)) == [[3, 5, 6]]
    assert allowed(constraint, (4, 4, 4, 4, 5, 4)) == [[3, 6]]


def test_rows_of_a_sentence_share_its_bounds_and_not_what_they_have_said() -> None:
    constraint = Constraint([Bounds(0, 9)], CPU, no_repeat_ngram=1)
    assert allowed(constraint, (4, 5), (6, 6), (4, 4)) == [[3, 6], [3, 4, 5], [3, 5, 6]]


def test_who_has_nothing_left_to_say_ends_even_too_early() -> None:
    constraint = Constraint([Bounds(8, 9)], CPU, no_repeat_ngram=1)
    assert allowed(constraint, (4, 5, 6), (4, 5, 4)) == [[3], [6]]
    assert allowed(Constraint([Bounds(8, 9)], CPU, no_repeat_ngram=2), (4, 5, 4)) == [[4, 6]]


def test_sentences_that_go_on_keep_their_own_rules() -> None:
    bounds = [Bounds(0, 9), Bounds(2, 3), Bounds(1, 9)]
    prefixes = [[4], [5, 6], []]
    constraint = Constraint(bounds, CPU, prefixes)
    constraint.select(torch.tensor([1, 2]))
    log_probs = torch.zeros(2, 1, VOCAB)
    constraint.apply(log_probs, torch.zeros(2, 1, 0).long())
    assert constraint.most.tolist() == [3, 9]
    assert log_probs[0, 0].isfinite().nonzero()[:, 0].tolist() == [5]
    assert log_probs[1, 0].tolist() == [0, 0, 0, -math.inf, 0, 0, 0]
    constraint.select(torch.tensor([1]))
    log_probs = torch.zeros(1, 1, VOCAB)
    constraint.apply(log_probs, torch.full((1, 1, 1), 4))
    assert log_probs.isfinite().all()
