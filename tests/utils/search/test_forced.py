"""The probability of what others say, against stepping through it and against what search says of its own."""

import math

import pytest
import torch

from const.token import BOS_ID, EOS_ID
from layers.packed import packed
from models.transformer import Transformer
from tests.tiny import MODEL, lively, sources
from tests.utils.search.tree import Tree, real, up_to
from utils.search import inspection
from utils.search.beam import beam_search
from utils.search.constraint import SearchConfig
from utils.search.inspection import alternatives, token_log_probs
from utils.search.sampling import SamplingConfig, sample

CPU = torch.device("cpu")
SRC = sources(5, 2, 7, 1, 3)
SOURCES = [list(real(row)[:-1]) for row in SRC]
TARGETS = [[4, 5, 6], [], [22, 4, 1, 7, 9, 9, 10], [8], [5, 5, 5, 5]]


def stepwise(model: Transformer, src: list[int], tgt: list[int]) -> list[float]:
    """One token after the other."""
    found = []
    with torch.no_grad():
        state = model.start(torch.tensor([[*src, EOS_ID]]))
        for before, token in zip([BOS_ID, *tgt], [*tgt, EOS_ID], strict=True):
            logits, state = model.step(torch.tensor([before]), state)
            found.append(logits[0].log_softmax(-1)[token].item())
    return found


def assert_close(found: list[list[float]], expected: list[list[float]], rel: float = 1e-4) -> None:
    assert [len(row) for row in found] == [len(row) for row in expected]
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == pytest.approx(theirs, rel=rel, abs=1e-4)


@pytest.mark.parametrize("tokens_per_batch", [1, 9, 20, 4096])
def test_each_token_has_the_probability_of_its_step_in_any_batch(tokens_per_batch: int) -> None:
    model = lively(MODEL, 20, 23)
    expected = [stepwise(model, src, tgt) for src, tgt in zip(SOURCES, TARGETS, strict=True)]
    assert_close(token_log_probs(model, SOURCES, TARGETS, tokens_per_batch), expected)
    order = [4, 2, 0, 3, 1]
    shuffled = token_log_probs(model, [SOURCES[i] for i in order], [TARGETS[i] for i in order], tokens_per_batch)
    assert_close(shuffled, [expected[i] for i in order])


def test_no_batch_is_larger_than_asked_and_each_pair_is_in_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lively(MODEL, 20, 23)
    shapes: list[tuple[int, int, int]] = []
    decode = model.decode

    def watched(tgt, memory, mask):  # type: ignore[no-untyped-def]
        shapes.append((*tgt.shape, memory.size(1)))
        return decode(tgt, memory, mask)

    monkeypatch.setattr(model, "decode", watched)
    token_log_probs(model, SOURCES * 4, TARGETS * 4, 20)
    assert sum(rows for rows, *_ in shapes) == 20
    assert all(rows == 1 or rows * max(lengths) <= 20 for rows, *lengths in shapes)
    assert len(shapes) < 12  # there is company where there is room


def test_logits_are_made_of_a_few_positions_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    model = lively(MODEL, 20, 23)
    expected = token_log_probs(model, SOURCES, TARGETS)
    sizes: list[int] = []
    project = model.project

    def watched(x):  # type: ignore[no-untyped-def]
        sizes.append(len(x))
        return project(x)

    monkeypatch.setattr(model, "project", watched)
    monkeypatch.setattr(inspection, "_POSITIONS_AT_ONCE", 3)
    assert_close(token_log_probs(model, SOURCES, TARGETS), expected)
    assert max(sizes) == 3
    assert sum(sizes) == sum(len(tgt) + 1 for tgt in TARGETS)  # of padding none


def test_a_packed_network_says_the_same() -> None:
    model = lively(MODEL, 20, 23)
    expected = token_log_probs(model, SOURCES, TARGETS)
    assert_close(token_log_probs(packed(model, torch.float32), SOURCES, TARGETS), expected)
    assert_close(token_log_probs(packed(model, torch.bfloat16), SOURCES, TARGETS), expected, rel=0.2)


def test_no_pairs_have_no_probabilities() -> None:
    assert token_log_probs(lively(MODEL, 20, 23), [], []) == []


def test_sources_without_their_targets_are_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        token_log_probs(lively(MODEL, 20, 23), SOURCES, TARGETS[:4])


@pytest.mark.parametrize("config", [SearchConfig(4), SearchConfig(3, 1.0, "length")], ids=["gnmt", "length"])
def test_what_search_finds_has_the_score_that_search_gave_it(config: SearchConfig) -> None:
    model, bounds = lively(MODEL, 20, 23), up_to(6, 9, 4, 8, 7)
    drawn = sample(model, SRC, bounds, config, SamplingConfig(4, temperature=1.5), range(5))
    for found in (beam_search(model, SRC, bounds, config), drawn):
        for src, hypotheses in zip(SOURCES, found, strict=True):
            log_probs = token_log_probs(model, [src] * len(hypotheses), [ids for ids, _ in hypotheses])
            scores = [sum(row) / config.penalty(len(row)) for row in log_probs]
            assert scores == pytest.approx([score for _, score in hypotheses], abs=1e-4)


# ways to go on


@pytest.mark.parametrize("prefix", [[], [4], [6, 6, 5]])
@pytest.mark.parametrize("k", [1, 3, 6])
def test_alternatives_are_the_likeliest_after_the_prefix(prefix: list[int], k: int) -> None:
    tree = Tree(9, seed=2, forbidden=2.0)
    log_probs = tree.log_probs((*SOURCES[0], EOS_ID), tuple(prefix))
    best = sorted(log_probs, key=lambda token: -log_probs[token])[:k]
    found = alternatives(tree, SOURCES[0], prefix, k, CPU)[-1]
    assert [token for token, _ in found] == best
    assert [log_prob for _, log_prob in found] == pytest.approx([log_probs[token] for token in best], abs=1e-5)


def test_there_are_no_more_alternatives_than_tokens_that_can_be_said() -> None:
    found = alternatives(Tree(9), SOURCES[0], [], 99, CPU)[0]
    assert {token for token, _ in found} == {EOS_ID, 4, 5, 6, 7, 8}
    assert sum(math.exp(log_prob) for _, log_prob in found) < 1  # the share of what was ruled out is not given away


def test_the_first_alternative_is_what_a_network_was_forced_to_say() -> None:
    model = lively(MODEL, 20, 23)
    forced_log_probs = token_log_probs(model, SOURCES, TARGETS)
    for src, tgt, expected in zip(SOURCES, TARGETS, forced_log_probs, strict=True):
        found = alternatives(model, src, tgt, 23, CPU)
        assert len(found) == len(tgt) + 1
        for t, token in enumerate([*tgt, EOS_ID]):
            assert token < EOS_ID or dict(found[t])[token] == pytest.approx(expected[t], rel=1e-4)
