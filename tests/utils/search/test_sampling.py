"""Draws against the probabilities that they are drawn by: of every token, and of every whole translation."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from const.token import EOS_ID
from tests.tiny import MODEL, lively, sources
from tests.utils.search.tree import Ids, Tree, real, repeats, up_to
from utils.search.constraint import Bounds, SearchConfig
from utils.search.sampling import SamplingConfig, candidates, greedy_search, inverse_cdf, sample

SRC = sources(5, 2, 7, 1, 3)
SOURCES = [real(row) for row in SRC]
PLAIN = SearchConfig(length_penalty=0.0)
BOUNDS = up_to(6, 9, 4, 8, 7)
NUMBERS = range(5)


def assert_drawn_by(counts: Counter[Ids], probs: dict[Ids, float]) -> None:
    """Pearson's chi-square: what is seen of each outcome is what its probability lets expect."""
    n, total = sum(counts.values()), sum(probs.values())
    assert counts.keys() <= probs.keys()
    expected = {outcome: n * p / total for outcome, p in probs.items()}
    rare = [outcome for outcome, count in expected.items() if count < 5]  # of which too few are seen: taken together
    cells = [(counts[outcome], count) for outcome, count in expected.items() if count >= 5]
    cells.append((sum(counts[outcome] for outcome in rare), sum(expected[outcome] for outcome in rare) + 1e-9))
    chi_square = sum((seen - count) ** 2 / count for seen, count in cells)
    freedom = len(cells) - 1
    # Wilson & Hilferty 1931: the cube root of a chi-square over its degrees of freedom is nearly normal
    z = ((chi_square / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(2 / (9 * freedom))
    assert z < 3, f"chi-square {chi_square:.1f} with {freedom} degrees of freedom"


def samples(tree: Tree, sampling: SamplingConfig, bounds: list[Bounds], row: int = 0) -> Counter[Ids]:
    """How often each translation of a source is drawn."""
    found = sample(tree, SRC[row : row + 1], bounds, PLAIN, sampling, [row])[0]
    assert len(found) == sampling.n_samples
    return Counter(tuple(ids) for ids, _ in found)


def sharpened(log_probs: dict[int, float], temperature: float) -> dict[int, float]:
    """The softmax of log-probabilities over the temperature."""
    weights = {token: math.exp(log_prob / temperature) for token, log_prob in log_probs.items()}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


# the distribution


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("seed", range(3))
def test_first_tokens_are_drawn_by_the_softmax_at_the_temperature(seed: int, temperature: float) -> None:
    tree = Tree(12, seed)
    found = samples(tree, SamplingConfig(2000, temperature, seed=seed), up_to(2))
    # a first token, or none: </s>
    probs = sharpened(tree.log_probs(SOURCES[0], ()), temperature)
    assert_drawn_by(found, {() if token == EOS_ID else (token,): p for token, p in probs.items()})


@pytest.mark.parametrize("temperature", [0.6, 1.0, 1.5])
def test_whole_translations_are_drawn_by_the_product_of_their_tokens(temperature: float) -> None:
    tree, bounds = Tree(7, seed=3), Bounds(0, 4)
    probs: dict[Ids, float] = {}
    open_ends: list[tuple[Ids, float]] = [((), 1.0)]
    while open_ends:
        said, p = open_ends.pop()
        for token, q in sharpened(tree.allowed(SOURCES[0], said, PLAIN, bounds), temperature).items():
            if token == EOS_ID:
                probs[said] = p * q
            else:
                open_ends.append(((*said, token), p * q))
    assert len(probs) == 1 + 3 + 9 + 27
    assert_drawn_by(samples(tree, SamplingConfig(4000, temperature), [bounds]), probs)


def test_two_samples_and_two_sentences_know_nothing_of_each_other() -> None:
    tree = Tree(6, seed=4)
    src = SRC[:1].expand(400, -1)  # one sentence under many numbers
    found = sample(tree, src, up_to(2) * 400, PLAIN, SamplingConfig(2), range(400))
    firsts = sharpened(tree.log_probs(SOURCES[0], ()), 1.0)
    by_ids = {() if token == EOS_ID else (token,): p for token, p in firsts.items()}
    pairs = {
        (*sorted([(*a, EOS_ID)[0], (*b, EOS_ID)[0]]),): p * q * (1 if a == b else 2)
        for a, p in by_ids.items()
        for b, q in by_ids.items()
    }
    drawn = Counter((*sorted((*ids, EOS_ID)[0] for ids, _ in two),) for two in found)
    assert_drawn_by(drawn, pairs)


# what is drawn among

LOG_PROBS = torch.tensor([[0.1, 0.3, 0.05, 0.25, 0.2, 0.1]], dtype=torch.float64).log()


def kept(sampling: SamplingConfig, log_probs: Tensor = LOG_PROBS) -> list[set[int]]:
    """The tokens of each row that can be drawn."""
    scores, tokens = candidates(log_probs, sampling)
    return [set(row[score > -math.inf].tolist()) for row, score in zip(tokens, scores, strict=True)]


@pytest.mark.parametrize(
    ("top_k", "expected"), [(0, {*range(6)}), (1, {1}), (3, {1, 3, 4}), (6, {*range(6)}), (99, {*range(6)})]
)
def test_top_k_keeps_the_k_likeliest(top_k: int, expected: set[int]) -> None:
    assert kept(SamplingConfig(top_k=top_k)) == [expected]


def test_top_k_keeps_k_of_equal_ones() -> None:
    assert [len(tokens) for tokens in kept(SamplingConfig(top_k=3), torch.zeros(2, 9))] == [3, 3]


@pytest.mark.parametrize(
    ("top_p", "expected"),
    [
        (0.01, {1}),
        (0.29, {1}),
        (0.31, {1, 3}),  # the one that crosses p is in
        (0.54, {1, 3}),
        (0.56, {1, 3, 4}),
        (0.94, {0, 1, 3, 4, 5}),
        (0.96, {*range(6)}),
        (1.0, {*range(6)}),
    ],
)
def test_the_nucleus_is_the_smallest_set_that_reaches_p(top_p: float, expected: set[int]) -> None:
    assert kept(SamplingConfig(top_p=top_p)) == [expected]


def test_a_nucleus_that_ends_exactly_at_p_is_complete() -> None:
    halves = torch.tensor([[0.25, 0.5, 0.25]], dtype=torch.float64).log()
    assert kept(SamplingConfig(top_p=0.5), halves) == [{1}]


def test_the_nucleus_is_of_what_temperature_and_top_k_leave() -> None:
    # squared: 9 : 6.25 : 4 of 20.5 in all; of the two likeliest alone: 9 of 15.25
    assert kept(SamplingConfig(temperature=0.5, top_p=0.37)) == [{1}]
    assert kept(SamplingConfig(temperature=0.5, top_p=0.43)) == [{1, 3}]
    assert kept(SamplingConfig(temperature=0.5, top_k=2, top_p=0.58)) == [{1}]
    assert kept(SamplingConfig(temperature=0.5, top_k=2, top_p=0.60)) == [{1, 3}]


@pytest.mark.parametrize("top_p", [0.05, 0.3, 0.7, 0.95, 0.999])
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_a_nucleus_of_many_tokens_is_found_as_by_sorting_all(top_p: float, scale: float) -> None:
    draw = torch.Generator().manual_seed(0)
    log_probs = (scale * torch.randn(7, 3000, generator=draw)).log_softmax(-1)
    for row, tokens in enumerate(kept(SamplingConfig(top_p=top_p), log_probs)):
        order = np.argsort(-log_probs[row].numpy(), kind="stable")
        sums = np.cumsum(log_probs[row].double().exp().numpy()[order])
        assert tokens == {*order[: int((sums < top_p).sum()) + 1].tolist()}


def test_what_is_cut_off_is_never_drawn_and_the_rest_by_its_share() -> None:
    tree = Tree(12, seed=5)
    probs = tree.log_probs(SOURCES[0], ())
    best = sorted(probs, key=lambda token: -probs[token])[:3]
    found = samples(tree, SamplingConfig(1000, top_k=3), up_to(2))
    assert_drawn_by(found, {() if token == EOS_ID else (token,): math.exp(probs[token]) for token in best})


# one number from [0, 1) and one token


def test_every_number_has_its_token_and_none_falls_on_what_cannot_be() -> None:
    probs = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    below_one = math.nextafter(1.0, 0.0)
    draws = [0.0, 0.2, 0.25, 0.6, 0.75, below_one]
    chosen = inverse_cdf(probs.expand(6, -1), torch.tensor(draws, dtype=torch.float64))
    assert chosen.tolist() == [1, 1, 3, 3, 4, 4]


def test_nor_does_rounding_make_it_so() -> None:
    """Many probabilities in single precision add up to something near one."""
    draw = torch.Generator().manual_seed(0)
    for size in (3, 1000, 32000):
        probs = torch.randn(20, size, generator=draw).softmax(-1)
        probs[:, ::2] = 0
        for number in (0.0, 1e-300, math.nextafter(1.0, 0.0)):
            chosen = inverse_cdf(probs, torch.full((20,), number, dtype=torch.float64))
            assert (probs.gather(-1, chosen[:, None]) > 0).all()


def test_nor_does_a_sum_that_is_made_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    """There the sums of two neighbours are rounded apart, so that one may grow, or shrink, where nothing is added."""
    cumsum = Tensor.cumsum

    def unsteady(self: Tensor, dim: int, dtype: torch.dtype) -> Tensor:
        return cumsum(self, dim, dtype=dtype) + 1e-6 * (self == 0)

    monkeypatch.setattr(Tensor, "cumsum", unsteady)
    probs = torch.tensor([0.0, 0.5, 0.0, 0.0, 0.5, 0.0])
    draws = [0.0, 0.5, 0.5 + 5e-7, math.nextafter(1.0, 0.0)]
    assert inverse_cdf(probs.expand(4, -1), torch.tensor(draws, dtype=torch.float64)).tolist() == [1, 4, 4, 4]


def test_small_probabilities_behind_large_ones_are_not_lost() -> None:
    probs = torch.full((1, 30001), 1e-9)
    probs[0, 0] = 1 - 3e-5
    sums = np.cumsum(probs[0].double().numpy())
    for number in np.linspace(1 - 2.9e-5, 1, 50, endpoint=False):
        chosen = inverse_cdf(probs, torch.tensor([number], dtype=torch.float64)).item()
        assert chosen == np.searchsorted(sums, number * sums[-1], side="right")


# the same draws in any company


def test_company_order_and_who_has_left_do_not_matter() -> None:
    model, config, sampling = lively(MODEL, 20, 23), PLAIN, SamplingConfig(4, top_p=0.95)
    together = sample(model, SRC, BOUNDS, config, sampling, NUMBERS)
    order = [3, 0, 4, 2, 1]
    shuffled = sample(model, SRC[order], [BOUNDS[i] for i in order], config, sampling, order)
    for place, row in enumerate(order):
        alone = sample(model, torch.tensor([SOURCES[row]]), BOUNDS[row : row + 1], config, sampling, [row])[0]
        for found in (shuffled[place], alone):
            assert [ids for ids, _ in found] == [ids for ids, _ in together[row]]
            assert [score for _, score in found] == pytest.approx([score for _, score in together[row]], abs=1e-4)
    assert len({len(ids) for n_best in together for ids, _ in n_best}) > 3


def test_a_sample_does_not_depend_on_how_many_are_drawn_or_how_long_others_may_be() -> None:
    tree = Tree(9, eos=-1.0)
    few = sample(tree, SRC[:1], up_to(5), PLAIN, SamplingConfig(2), [7])[0]
    many = sample(tree, SRC, up_to(5, 12, 3, 4, 9), PLAIN, SamplingConfig(6), [7, 0, 1, 2, 3])[0]
    assert {(*ids,) for ids, _ in few} <= {(*ids,) for ids, _ in many}


def test_other_seeds_and_numbers_draw_otherwise_and_the_same_ones_the_same() -> None:
    tree, src = Tree(60, eos=-9.0), SRC[:1]

    def drawn(seed: int, number: int) -> Ids:
        return (*sample(tree, src, up_to(12), PLAIN, SamplingConfig(seed=seed), [number])[0][0].ids,)

    outcomes = {(seed, number): drawn(seed, number) for seed in range(5) for number in (0, 1, 2, 2**40)}
    assert len({*outcomes.values()}) == 20
    assert all(drawn(*key) == ids for key, ids in outcomes.items())


# what all searches share


@pytest.mark.parametrize("seed", range(3))
def test_without_warmth_it_is_greedy(seed: int) -> None:
    for model in (Tree(8, seed), lively(MODEL, 20, 23, seed)):
        greedy = greedy_search(model, SRC, BOUNDS, PLAIN)  # type: ignore[misc]
        for sampling in (
            SamplingConfig(2, temperature=1e-4),
            SamplingConfig(2, top_k=1),
            SamplingConfig(2, top_p=1e-6),
        ):
            found = sample(model, SRC, BOUNDS, PLAIN, sampling, NUMBERS)  # type: ignore[misc]
            for best, drawn in zip(greedy, found, strict=True):
                assert [ids for ids, _ in drawn] == [best.ids] * 2
                assert drawn[0].score == pytest.approx(best.score, abs=1e-4)


def rules(ngram: int = 0) -> tuple[list[Bounds], list[Ids], SearchConfig]:
    """What constrains five sentences: bounds, prefixes (one longer than its bounds) and no repetition."""
    bounds = [Bounds(2, 5), Bounds(0, 2), Bounds(3, 4), Bounds(1, 9), Bounds(0, 3)]
    return bounds, [(), (4,), (5, 4, 4, 6, 6), (6, 6), ()], SearchConfig(length_penalty=0.7, no_repeat_ngram=ngram)


@pytest.mark.parametrize("temperature", [0.5, 3.0])
@pytest.mark.parametrize("ngram", [0, 1, 2])
def test_rules_are_kept_and_scores_are_the_models_own(ngram: int, temperature: float) -> None:
    bounds, prefixes, config = rules(ngram)
    tree = Tree(8, seed=6, forbidden=3.0)
    found = sample(tree, SRC, bounds, config, SamplingConfig(30, temperature), NUMBERS, prefixes)
    for row, source in enumerate(SOURCES):
        possible = {(*ids,): score for ids, score in tree.all_translations(source, config, bounds[row], prefixes[row])}
        for ids, score in found[row]:
            assert score == pytest.approx(possible[(*ids,)], abs=1e-4)
        assert all((*ids,)[: len(prefixes[row])] == prefixes[row] for ids, _ in found[row])
        assert ngram == 0 or row == 2 or not any(repeats((*ids,)[len(prefixes[row]) :], ngram) for ids, _ in found[row])
    assert len({len(ids) for ids, _ in found[3]}) > 2


def test_a_prefix_longer_than_any_translation_may_be_stretches_it() -> None:
    prefix = (4, 5, 6, 7, 8, 4, 5)
    found = sample(Tree(9), SRC[:2], up_to(2, 3), PLAIN, SamplingConfig(2), [0, 1], [prefix, ()])
    assert [(*ids,) for ids, _ in found[0]] == [prefix] * 2


def test_the_best_stands_first() -> None:
    for drawn in sample(Tree(9), SRC, BOUNDS, PLAIN, SamplingConfig(20), NUMBERS):
        scores = [score for _, score in drawn]
        assert scores == sorted(scores, reverse=True)
        assert len({*scores}) > 5


def test_nothing_is_said_that_no_text_contains() -> None:
    found = sample(Tree(9, forbidden=50.0), SRC, BOUNDS, PLAIN, SamplingConfig(20, temperature=5.0), NUMBERS)
    said = {token for drawn in found for ids, _ in drawn for token in ids}
    assert said == {4, 5, 6, 7, 8}


def test_a_source_is_read_once_for_all_its_samples() -> None:
    tree = Tree(9)
    sample(tree, SRC, BOUNDS, PLAIN, SamplingConfig(3), NUMBERS)
    assert tree.starts == [5]
    assert len(tree.steps[0]) == 15


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_samples": 0}, r"n_samples=0: give 1 to 10000"),
        ({"n_samples": 10_001}, r"n_samples=10001: give 1 to 10000"),
        ({"temperature": 0.0}, r"temperature=0\.0: give 1e-05 or more, or use greedy search \(beam_size=1\)"),
        ({"temperature": -1.0}, r"temperature=-1\.0: give 1e-05 or more"),
        ({"temperature": math.inf}, r"temperature=inf: "),
        ({"temperature": math.nan}, r"temperature=nan: "),
        ({"top_k": -1}, r"top_k=-1: give 0 \(all tokens\) or more"),
        ({"top_p": 0.0}, r"top_p=0\.0: give more than 0 and at most 1 \(all tokens\)"),
        ({"top_p": 1.1}, r"top_p=1\.1: "),
        ({"top_p": math.nan}, r"top_p=nan: "),
        ({"seed": -1}, r"seed=-1: give 0 or more"),
    ],
)
def test_settings_with_which_nothing_can_be_drawn_are_refused(changes: dict[str, float], message: str) -> None:
    with pytest.raises(ValueError, match=rf"^{message}"):
        replace(SamplingConfig(), **changes)  # type: ignore[arg-type]
