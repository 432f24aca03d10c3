"""What is attended to while steps are taken, against a full pass; and the best translations, against all there are."""

import math
from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
import torch
from torch import Tensor

from const.token import BOS_ID, EOS_ID
from layers.recorded_weights import recorded_weights
from layers.scaled_dot_product_attention import FusedScaledDotProductAttention
from models.transformer import Transformer, TransformerState
from tests.tiny import MODEL, TEXT, lively, run, sources, written_out
from tests.utils.search.tree import Ids, Tree, real, up_to
from utils.run import build_translator, load_run
from utils.search.beam import beam_search
from utils.search.coverage import Covered, CoveredState
from utils.search.hypothesis import Hypothesis, SearchConfig
from utils.search.sampling import SamplingConfig

CPU = torch.device("cpu")
EXPLICIT = replace(MODEL, fused=False)
SRC = sources(5, 2, 7, 1)
SOURCES = [real(row) for row in SRC]


def full_pass(model: Transformer, source: Ids, *translations: Ids) -> list[tuple[float, float]]:
    """Log-probability and coverage of each of some translations of one length: no padding, no cache."""
    attention = model.decoder[-1].cross_attention.attention  # type: ignore[union-attr]
    tgt = torch.tensor([[BOS_ID, *ids, EOS_ID] for ids in translations])
    with torch.no_grad(), recorded_weights([attention]) as weights:  # type: ignore[list-item]
        logits = model(torch.tensor([source] * len(tgt)), tgt[:, :-1])
    log_probs = logits.log_softmax(-1).gather(-1, tgt[:, 1:, None]).sum((1, 2))
    return [(log_prob, coverage(row)) for log_prob, row in zip(log_probs.tolist(), weights[0].mean(1), strict=True)]


def coverage(weights: Tensor) -> float:
    """Σᵢ log min(Σⱼ pᵢⱼ, 1), term by term, of weights (T, S)."""
    return sum(math.log(min(sum(column), 1.0)) for column in weights.T.tolist())


def all_translations(model: Transformer, source: Ids, config: SearchConfig, most: int) -> list[Hypothesis]:
    """Every translation of at most so many tokens, best first."""
    found = []
    for length in range(most):
        every = [*product(range(4, 7), repeat=length)]
        for ids, (log_prob, cp) in zip(every, full_pass(model, source, *every), strict=True):
            score = log_prob / config.penalty(length + 1) + config.coverage_penalty * cp
            found.append(Hypothesis(list(ids), score))
    return sorted(found, key=lambda hypothesis: -hypothesis.score)


def test_coverage_is_the_sum_over_the_rows_of_a_full_pass() -> None:
    """While rows change places and sentences leave."""
    model = lively(EXPLICIT, 20, 23)
    said: list[list[Ids]] = [[()], [()], [()], [()]]
    alive = [0, 1, 2, 3]
    moves = [  # rows of each sentence that stays, and what they say next
        ([0, 1, 2, 3], [[0, 0], [0, 0], [0, 0], [0, 0]], [[4, 9], [5, 6], [7, 7], [8, 4]]),
        ([0, 2, 3], [[1, 0], [1, 1], [0, 1]], [[6, 6], [4, 5], [9, 20]]),
        ([0, 2], [[0, 0], [1, 0]], [[11, 12], [13, 14]]),
    ]
    with torch.inference_mode():
        covered = Covered(model)
        _, state = covered.step(torch.full((4,), BOS_ID), covered.start(SRC))
        for stay, chosen, tokens in moves:
            places, width = [alive.index(sentence) for sentence in stay], len(said[0])
            rows = [[place * width + i for i in own] for place, own in zip(places, chosen, strict=True)]
            said = [
                [(*said[place][i], token) for i, token in zip(own, new, strict=True)]
                for place, own, new in zip(places, chosen, tokens, strict=True)
            ]
            alive = stay
            _, state = covered.step(torch.tensor(tokens).flatten(), state.select(torch.tensor(rows)))
            expected = [
                full_pass(model, SOURCES[sentence], ids)[0][1]
                for sentence, beams in zip(alive, said, strict=True)
                for ids in beams
            ]
            assert state.coverage().tolist() == pytest.approx(expected, rel=1e-4)
            assert min(expected) < -4


@pytest.mark.parametrize("beta", [0.2, 1.0, 20.0])
@pytest.mark.parametrize("alpha", [0.0, 1.0])
def test_a_wide_beam_finds_every_translation_by_probability_and_coverage(alpha: float, beta: float) -> None:
    model, config = lively(EXPLICIT, 20, 7), SearchConfig(60, alpha, coverage_penalty=beta)
    found = beam_search(Covered(model), SRC, up_to(4, 3, 4, 2), config)
    for source, most, hypotheses in zip(SOURCES, (4, 3, 4, 2), found, strict=True):
        expected = all_translations(model, source, config, most)
        assert [score for _, score in hypotheses] == pytest.approx([score for _, score in expected], abs=1e-3)
        assert {(*ids,) for ids, _ in hypotheses} == {(*ids,) for ids, _ in expected}
        assert hypotheses[0].ids == expected[0].ids


def test_stopping_early_does_not_lose_what_covers_more() -> None:
    """A finished translation that left much out does not end the search for one that was less likely."""
    config = SearchConfig(60, 0.0, coverage_penalty=1.0)
    surprises = 0
    for seed in range(6):
        model = lively(EXPLICIT, 20, 7, seed)
        found = beam_search(Covered(model), SRC, up_to(4, 4, 4, 4), config, n_best=1)
        plain = beam_search(model, SRC, up_to(4, 4, 4, 4), replace(config, coverage_penalty=0.0), n_best=1)
        for source, (best, *_), (likeliest, *_) in zip(SOURCES, found, plain, strict=True):
            expected = all_translations(model, source, config, 4)[0]
            assert best.ids == expected.ids
            surprises += best.ids != likeliest.ids
    assert surprises > 3


def test_without_a_penalty_looking_changes_nothing() -> None:
    model, config = lively(EXPLICIT, 20, 23), SearchConfig(4)
    assert beam_search(Covered(model), SRC, up_to(9, 9, 9, 9), config) == beam_search(
        model, SRC, up_to(9, 9, 9, 9), config
    )


def test_nothing_is_gained_by_looking_twice_and_padding_is_no_loss() -> None:
    known = TransformerState((), torch.tensor([[[[True, True, True]]], [[[True, True, False]]]]), ())
    attended = torch.tensor([[0.5, 1.0, 7.0], [1.0, 2.0, 3.0], [0.5, 0.25, 0.0], [1.5, 1.0, 0.0]])
    expected = [math.log(0.5), 0.0, math.log(0.125), 0.0]
    assert CoveredState(known, attended).coverage().tolist() == pytest.approx(expected)


def test_a_weight_that_vanishes_does_not_make_a_translation_impossible() -> None:
    known = TransformerState((), torch.ones(1, 1, 1, 2, dtype=torch.bool), ())
    (cp,) = CoveredState(known, torch.tensor([[0.0, 1.0]])).coverage().tolist()
    assert -100 < cp < -50


def test_the_network_is_left_as_it_was() -> None:
    model = lively(EXPLICIT, 20, 23)
    beam_search(Covered(model), SRC, up_to(4, 4, 4, 4), SearchConfig(2, coverage_penalty=1.0))
    assert not any(module._forward_hooks for module in model.modules())


def test_what_does_not_say_where_it_looks_is_refused_with_the_remedy() -> None:
    config = SearchConfig(2, coverage_penalty=0.2)
    message = r"^coverage_penalty needs a model that records its attention: wrap it in Covered, or give 0$"
    with pytest.raises(ValueError, match=message):
        beam_search(Tree(9), SRC, up_to(4, 4, 4, 4), config)


# the run's translator


def test_a_run_that_was_trained_with_the_fused_kernel_translates_with_the_penalty(tmp_path: Path) -> None:
    trained = load_run(run(tmp_path), CPU)
    search = SearchConfig(4, coverage_penalty=2.0)
    translator = build_translator([trained], search, precision="fp32")
    ids = trained.tokenizers.src.encode(TEXT.src[::30])
    oracle = written_out(trained.model)
    for source, hypotheses in zip(ids, translator.search_ids(ids), strict=True):
        for said, score in hypotheses:
            ((log_prob, cp),) = full_pass(oracle, (*source, EOS_ID), tuple(said))
            assert score == pytest.approx(log_prob / search.penalty(len(said) + 1) + 2.0 * cp, rel=1e-3)
    kernels = [type(block.cross_attention.attention) for block in trained.model.decoder]  # type: ignore[union-attr]
    assert kernels == [FusedScaledDotProductAttention] * 2  # the run's own is not touched


def test_half_precision_only_rounds(tmp_path: Path) -> None:
    trained = load_run(run(tmp_path), CPU)
    ids = trained.tokenizers.src.encode(TEXT.src[:1])
    search = SearchConfig(4, coverage_penalty=1.0)
    exact, rounded = (
        build_translator([trained], search, precision=precision).search_ids(ids)[0][0].score
        for precision in ("fp32", "bf16")
    )
    assert rounded == pytest.approx(exact, rel=0.1)


def test_an_ensemble_is_refused_and_where_translations_are_drawn_nobody_looks(tmp_path: Path) -> None:
    trained = load_run(run(tmp_path), CPU)
    search = SearchConfig(4, coverage_penalty=0.2)
    message = r"^coverage_penalty=0\.2 needs a single model, but there are 2: translate with one run, or give 0$"
    with pytest.raises(ValueError, match=message):
        build_translator([trained, trained], search)
    build_translator([trained, trained], replace(search, coverage_penalty=0.0))
    build_translator([trained, trained], search, SamplingConfig())
    drawing = build_translator([trained], search, SamplingConfig())
    assert isinstance(drawing.model, Transformer)
    assert drawing.translate(TEXT.src[:2])[1].text
    assert isinstance(build_translator([trained], search).model, Covered)
