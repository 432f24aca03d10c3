import math
from collections.abc import Sequence

import pytest
import torch

from const.token import EOS
from models.transformer import Transformer
from tests.tiny import TEXT, tokenizers, translating
from utils.search.constraint import SearchConfig
from utils.search.inspection import Inspector, perplexity, token_log_probs
from utils.search.translator import Translator
from utils.search.wrapped import Ensemble

TEXTS = [TEXT.src[0], "", TEXT.src[77], "😀", TEXT.src[0] + TEXT.src[1] + TEXT.src[2], "寺"]
SEARCH = SearchConfig(beam_size=3, max_ratio=1.0)


def inspector(models: Sequence[Transformer] | None = None, search: SearchConfig = SEARCH) -> Inspector:
    models = models or [translating()]
    model = models[0] if len(models) == 1 else Ensemble(models)
    return Inspector(Translator(model, tokenizers(), "en", search, 14, 48, torch.device("cpu")), models)


@pytest.mark.parametrize("seeds", [[1], [1, 2]], ids=["one", "ensemble"])
def test_the_log_probs_of_a_translation_add_up_to_its_score(seeds: list[int]) -> None:
    ours = inspector([translating(seed=seed) for seed in seeds])
    found = ours.translator.translate(TEXTS)
    assert [translation.n_pieces for translation in found] == [1, 0, 1, 0, 3, 1]
    log_probs = ours.log_probs(TEXTS, found)
    assert [row is None for row in log_probs] == [False, True, False, True, True, False]
    for translation, row in zip(found, log_probs, strict=True):
        if row is not None:
            assert len(row) == len(translation.candidates[0].tokens) + 1
            assert sum(row) / SEARCH.penalty(len(row)) == pytest.approx(translation.score, abs=1e-3)


def test_an_alignment_speaks_of_the_tokens_that_are_shown() -> None:
    ours = inspector()
    found = ours.translator.translate(TEXTS)
    n_linked = 0
    for source, translation, links in zip(ours.source_tokens(TEXTS), found, ours.alignments(TEXTS, found), strict=True):
        assert (links is None) == (translation.n_pieces != 1)
        if links is not None:
            assert [t for _, t in links] == list(range(len(translation.candidates[0].tokens)))
            assert all(0 <= s < len(source) for s, _ in links)
            n_linked += 1
    assert n_linked == 3


def test_a_given_translation_is_judged_token_by_token() -> None:
    ours = inspector()
    (found,) = ours.judge([TEXT.src[3]], [TEXT.tgt[3]])
    (src,), (tgt,) = tokenizers().src.encode([TEXT.src[3]]), tokenizers().tgt.encode([TEXT.tgt[3]])
    assert found.tokens == [*tokenizers().tgt.tokens(tgt), EOS]
    assert found.log_probs == pytest.approx(token_log_probs(translating(), [src], [tgt])[0], abs=1e-4)
    assert found.log_prob == pytest.approx(sum(found.log_probs))
    assert found.perplexity == pytest.approx(math.exp(-found.log_prob / len(found.tokens)))
    assert (found.lost_tokens, found.n_unknown) == (0, 0)


def test_what_the_model_cannot_hold_or_does_not_know_is_counted() -> None:
    ours = inspector()
    long = "".join(TEXT.src[:8])
    n_src = len(tokenizers().src.encode([long])[0])
    nothing, cut, unknown, both = ours.judge(["", long, "寺", "寺"], ["", "There", "A 😀", "in " * 99])
    assert (nothing.tokens, nothing.log_prob, nothing.perplexity) == ([], 0, 1)
    assert cut.lost_tokens == n_src - 13
    assert (unknown.n_unknown, unknown.lost_tokens) == (1, 0)
    assert len(both.tokens) == 48
    assert both.lost_tokens == len(tokenizers().tgt.encode(["in " * 99])[0]) - 47


def test_several_models_judge_by_their_mean_probability() -> None:
    models = [translating(seed=1), translating(seed=2)]
    one, other, both = (inspector(part).judge(TEXT.src[:4], TEXT.tgt[:4]) for part in (models[:1], models[1:], models))
    for a, b, mean in zip(one, other, both, strict=True):
        by_hand = [math.log((math.exp(p) + math.exp(q)) / 2) for p, q in zip(a.log_probs, b.log_probs, strict=True)]
        assert mean.log_probs == pytest.approx(by_hand, abs=1e-4)


def test_alternatives_are_those_of_each_position() -> None:
    ours = inspector(search=SearchConfig(beam_size=1, max_ratio=1.0))
    (found,) = ours.translator.translate(["寺"])
    positions = ours.positions("寺", found, 3)
    tokens = found.candidates[0].tokens
    assert [position.number for position in positions] == list(range(1, len(tokens) + 2))
    assert [position.token for position in positions] == [*tokens, EOS]
    # greedy search said what was likeliest, but for its last token, which had to be </s>
    assert [position.likeliest[0][0] for position in positions[:-1]] == tokens
    log_probs = ours.log_probs(["寺"], [found])[0]
    assert log_probs is not None
    assert [position.likeliest[0][1] for position in positions[:-1]] == pytest.approx(log_probs[:-1], abs=1e-3)


def test_behind_a_prefix_there_is_one_position() -> None:
    ours = inspector()
    prefix = "There is"
    (found,) = ours.translator.translate(["寺"], prefixes=[prefix])
    (position,) = ours.positions("寺", found, 2, prefix)
    n_forced = len(tokenizers().tgt.encode([prefix])[0])
    assert position.number == n_forced + 1
    assert position.token == [*found.candidates[0].tokens, EOS][n_forced]
    assert position == ours.positions("寺", found, 2)[n_forced]


def test_only_one_sentence_has_alternatives() -> None:
    ours = inspector()
    found = ours.translator.translate(TEXTS)
    for text, translation, n in ((TEXTS[4], found[4], 3), ("", found[1], 0)):
        with pytest.raises(ValueError, match=f"translated in {n} pieces: give one sentence"):
            ours.positions(text, translation, 3)


def test_perplexity_is_a_geometric_mean() -> None:
    assert perplexity(3 * math.log(0.5), 3) == pytest.approx(2)


def test_a_sentence_that_is_too_long_is_judged_by_what_was_read_of_it() -> None:
    ours, text = inspector(), "京都に古い寺" * 20
    found = ours.translator.translate([text])
    assert found[0].n_pieces == 1
    assert found[0].lost_tokens > 0
    assert len(ours.source_tokens([text])[0]) == 13
    (row,) = ours.log_probs([text], found)
    assert row is not None
    assert sum(row) / SEARCH.penalty(len(row)) == pytest.approx(found[0].score, abs=1e-3)
