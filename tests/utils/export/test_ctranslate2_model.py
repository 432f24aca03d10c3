"""CTranslate2 against our own search: equal greedy translations, equally good beams, equal probabilities."""

import random
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import torch

from const.token import EOS_ID, SPECIAL_TOKENS, UNK_ID
from models.transformer import Transformer, TransformerConfig
from tests.tiny import MODEL, TEXT, tokenizers, translating
from tests.utils.export.learned import learned
from utils.dataset.batch import padded
from utils.export.ctranslate2 import CTranslate2Model, to_ctranslate2
from utils.search.beam import beam_search
from utils.search.constraint import Bounds, Hypothesis, SearchConfig
from utils.search.inspection import alternatives, token_log_probs
from utils.search.sampling import greedy_search

CPU = torch.device("cpu")
GREEDY = SearchConfig(beam_size=1)
SOURCES = tokenizers().src.encode(TEXT.src)
DRAW = random.Random(2)
BOUNDS = [Bounds(least, least + DRAW.randint(1, 11)) for least in (DRAW.choice((0, 0, 3, 24)) for _ in SOURCES)]
SHAPES = {
    "norm first": MODEL,
    "norm last, learned positions": replace(MODEL, norm_first=False, positions="learned"),
}
PIECES = range(len(SPECIAL_TOKENS), len(tokenizers().tgt))
STARTS: list[list[int]] = [[], [], *([DRAW.choice(PIECES) for _ in range(n)] for n in (1, 2, 5))]


def tempted(bias: float) -> Transformer:
    """As much more as the bias says to say <pad>, <unk> and <s>; by much less than 0: sober, as the well-trained."""
    model = deepcopy(learned(replace(MODEL, tie="none")))
    with torch.no_grad():
        model.output.bias[:EOS_ID] = bias
    return model


def exported(model: Transformer, folder: Path) -> CTranslate2Model:
    to_ctranslate2(model, tokenizers(), folder / "model")
    return CTranslate2Model(folder / "model", tokenizers(), CPU)


def best(found: Sequence[Sequence[Hypothesis]]) -> list[list[int]]:
    return [hypotheses[0].ids for hypotheses in found]


@pytest.mark.parametrize("config", SHAPES.values(), ids=SHAPES)
def test_greedy_translations_are_ours(config: TransformerConfig, tmp_path: Path) -> None:
    model = learned(config)
    theirs = exported(model, tmp_path)
    for search in (GREEDY, replace(GREEDY, no_repeat_ngram=2)):
        for choices in (STARTS[:1], STARTS):
            prefixes = [DRAW.choice(choices) for _ in SOURCES]
            ours = [found.ids for found in greedy_search(model, padded(SOURCES), BOUNDS, search, prefixes)]
            assert best(theirs.search(SOURCES, BOUNDS, search, prefixes)) == ours
    for ids, bound, prefix in zip(ours, BOUNDS, prefixes, strict=True):
        assert bound.least <= len(ids) < max(bound.most, len(prefix) + 1) or ids == prefix
        assert ids[: len(prefix)] == prefix
    assert len({len(ids) for ids in ours}) > 5


@pytest.mark.parametrize("penalty", [(0.6, "gnmt"), (1.0, "length"), (0.0, "gnmt"), (-1.0, "gnmt")])
@pytest.mark.parametrize("width", [1, 2, 5])
def test_scores_are_log_probabilities_over_our_penalty(
    width: int, penalty: tuple[float, Literal["gnmt", "length"]], tmp_path: Path
) -> None:
    model, search = tempted(-50.0), SearchConfig(width, *penalty)
    theirs = exported(model, tmp_path)
    sources, bounds = SOURCES[::3], [Bounds(0, bound.most - bound.least) for bound in BOUNDS[::3]]
    for prefixes in (None, [DRAW.choice(STARTS) for _ in sources]):
        found = theirs.search(sources, bounds, search, prefixes)
        for source, hypotheses in zip(sources, found, strict=True):
            log_probs = token_log_probs(model, [source] * len(hypotheses), [one.ids for one in hypotheses])
            expected = [sum(each) / search.penalty(len(each)) for each in log_probs]
            assert [one.score for one in hypotheses] == pytest.approx(expected, abs=1e-3)
            scores = [one.score for one in hypotheses]
            assert scores == sorted(scores, reverse=True)
            assert len({tuple(one.ids) for one in hypotheses}) == len(hypotheses) <= width
        assert sum(map(len, found)) > 0.4 * width * len(sources)


@pytest.mark.parametrize("penalty", [(0.6, "gnmt"), (1.0, "length"), (0.0, "gnmt")])
def test_a_beam_finds_what_ours_finds(penalty: tuple[float, Literal["gnmt", "length"]], tmp_path: Path) -> None:
    model, search = learned(), SearchConfig(4, *penalty)
    bounds = [Bounds(0, 40)] * len(SOURCES)
    ours = beam_search(model, padded(SOURCES), bounds, search, n_best=1)
    found = exported(model, tmp_path).search(SOURCES, bounds, search)
    n_same = sum(a == b for a, b in zip(best(ours), best(found), strict=True))
    assert n_same > 0.95 * len(SOURCES)
    lost = [a[0].score - b[0].score for a, b in zip(ours, found, strict=True)]
    assert sum(lost) / len(lost) < 0.05


def test_it_looks_on_when_enough_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs, search = exported(learned(), tmp_path), SearchConfig(4, 2.0, "length")
    bounds = [Bounds(0, 40)] * len(SOURCES)
    far = [found[0].score for found in theirs.search(SOURCES, bounds, search)]
    monkeypatch.setattr("utils.export.ctranslate2._PATIENCE", 1)
    near = [found[0].score for found in theirs.search(SOURCES, bounds, search)]
    assert sum(far) > sum(near) + 0.01


def test_what_may_not_be_said_shares_out_its_probability(tmp_path: Path) -> None:
    model = tempted(10.0)
    bounds = [Bounds(0, 20)] * len(SOURCES)
    ours = greedy_search(model, padded(SOURCES), bounds, GREEDY)
    found = exported(model, tmp_path).search(SOURCES, bounds, GREEDY)
    assert best(found) == [one.ids for one in ours]
    assert all(a.score < b.score for a, (b,) in zip(ours, found, strict=True) if len(b.ids) < 19)


def test_given_translations_are_as_likely(tmp_path: Path) -> None:
    model = translating()
    targets = [[], *tokenizers().tgt.encode(TEXT.tgt)[1:-1], [UNK_ID]]
    expected = token_log_probs(model, SOURCES, targets)
    found = exported(model, tmp_path).log_probs(SOURCES, targets)
    assert [len(row) for row in found] == [len(ids) + 1 for ids in targets]
    for ours, row in zip(expected, found, strict=True):
        assert row == pytest.approx(ours, abs=1e-3)


def test_a_translation_of_no_tokens_may_be_asked_for(tmp_path: Path) -> None:
    (found,) = exported(translating(), tmp_path).search(SOURCES[:1], [Bounds(0, 1)], SearchConfig(2))
    assert [one.ids for one in found] == [[]]


def test_a_step_cannot_be_taken(tmp_path: Path) -> None:
    theirs = exported(translating(), tmp_path)
    with pytest.raises(ValueError, match="offers no single steps"):
        alternatives(theirs, SOURCES[0], [], 2, CPU)
    with pytest.raises(ValueError, match="offers no single steps"):
        theirs.step(None, None)


def test_what_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    to_ctranslate2(translating(), tokenizers(), tmp_path / "model")
    with pytest.raises(ValueError, match="float16"):
        CTranslate2Model(tmp_path / "model", tokenizers(), CPU, "fp16")
    (tmp_path / "model" / "model.bin").write_bytes(b"no model")
    with pytest.raises(ValueError, match=r"CTranslate2 cannot load .*model \(.*\): export the run again"):
        CTranslate2Model(tmp_path / "model", tokenizers(), CPU)
