"""Search against brute force, where every probability is known; then translations of texts, and their inspection."""

import math
import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import chain, islice, pairwise, product
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sacrebleu.metrics.chrf import CHRF

from config.model import BertConfig
from config.search import Bounds, Hypothesis, SamplingConfig, SearchConfig
from const.token import BOS, BOS_ID, EOS, EOS_ID, UNK_ID
from layers.packed import packed
from models.transformer import Transformer
from tests.tiny import MODEL, TEXT, lively, sources, tagged_tokenizers, tokenizers, translating, written_out
from tests.tree import Ids, Tree, asked, assert_drawn_by, real, repeats, up_to
from utils.dataset.masked import WholeWords
from utils.search import beam, forced, glossary, inspection
from utils.search.beam import batch_height, beam_search, drop_finished, largest
from utils.search.constraint import NEVER, Ensemble, Interruptible, Searchable
from utils.search.expected_chrf import by_expected_chrf, expected_chrf
from utils.search.forced import (
    AttentionMap,
    align,
    alternatives,
    attention_entropy,
    attention_weights,
    attentions,
    largest_entropy,
    layer_guesses,
    mean_cross_attention,
    token_log_probs,
)
from utils.search.glossary import Glossary, Wanted
from utils.search.inspection import Inspector, join_words
from utils.search.sampling import candidates, greedy_search, inverse_cdf, sample
from utils.search.searcher import BeamSearch, NetworkSearch, Request, Sampling, Searcher, within_budget
from utils.search.translation import CUT, SEARCHED_AGAIN
from utils.search.translator import Translator
from utils.terminal.output import notices
from utils.text.capitals import without_emphasis
from utils.text.loop import is_loop
from utils.text.tokenizer import TokenizerPair, WordTokenizer, id_of_each

CPU = torch.device("cpu")
PLAIN = SearchConfig(length_penalty=0.0)
SRC = sources(5, 2, 7, 1, 3)
SOURCES = [real(row) for row in SRC]
ORDER = [3, 0, 4, 2, 1]  # another order of these five
FREE = up_to(6, 9, 4, 8, 7)
RULED = [Bounds(3, 6), Bounds(0, 9), Bounds(2, 3), Bounds(7, 8), Bounds(0, 2)]
PREFIXES: list[Ids] = [(), (4,), (5, 4, 4, 6), (6, 6), ()]
NETWORK = lively(MODEL, 20, 23)

penalised = pytest.mark.parametrize(
    "config",
    [
        *(SearchConfig(length_penalty=alpha) for alpha in (-0.8, 0.0, 0.6, 1.0, 2.5)),
        *(SearchConfig(length_penalty=alpha, normalization="length") for alpha in (-0.8, 0.6, 1.0, 2.5)),
    ],
    ids=lambda config: f"{config.normalization} {config.length_penalty}",
)


def same(found: list[Hypothesis], expected: list[Hypothesis]) -> bool:
    close = [score for _, score in found] == pytest.approx([score for _, score in expected], abs=1e-4)
    return close and [ids for ids, _ in found] == [ids for ids, _ in expected]


def test_bounds_grow_with_the_source_between_absolute_ones() -> None:
    for search, src_length, bounds in (
        (SearchConfig(), 1, (0, 12)),
        (SearchConfig(max_ratio=0), 9, (0, 10)),
        (SearchConfig(max_length=7), 9, (0, 8)),  # seven tokens and </s>
        (SearchConfig(max_ratio=90.0), 9, (0, 40)),  # the window
        (SearchConfig(max_ratio=math.inf, min_ratio=math.inf), 9, (39, 40)),
        (SearchConfig(min_ratio=0.5, min_length=3), 5, (3, 20)),  # the longer of the two
        (SearchConfig(min_ratio=0.5, min_length=3), 8, (4, 26)),
        (SearchConfig(min_length=50), 1, (11, 12)),  # what may not be longer cannot be told to be
    ):
        assert search.bounds(src_length, window=40) == Bounds(*bounds)


def test_penalties_are_those_of_gnmt_and_of_the_length() -> None:
    gnmt, plain = SearchConfig(length_penalty=0.6), SearchConfig(length_penalty=0.6, normalization="length")
    assert [gnmt.penalty(n) for n in (1, 7, 13)] == pytest.approx([1, 2**0.6, 3**0.6])
    assert [plain.penalty(n) for n in (1, 7, 13)] == pytest.approx([1, 7**0.6, 13**0.6])


@penalised
@pytest.mark.parametrize("ngram", [0, 1, 2, 3])
def test_a_beam_wider_than_the_tree_finds_every_sequence_that_the_rules_allow(ngram: int, config: SearchConfig) -> None:
    tree, config = Tree(7, seed=2), replace(config, beam_size=100, no_repeat_ngram=ngram)
    bounds, prefixes = [Bounds(2, 4), Bounds(0, 2), Bounds(1, 3), Bounds(3, 4), Bounds(2, 3)], PREFIXES
    found = beam_search(tree, asked(SRC, bounds, prefixes), config)
    for row, source in enumerate(SOURCES):
        assert same(found[row], tree.all_translations(source, config, bounds[row], prefixes[row])), row


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
    bounds = [Bounds(min(shortest, longest - 1), longest) for _, shortest, longest, _ in rows]
    prefixes = [tuple(min(token, vocab - 1) for token in row[-1]) for row in rows]
    found = beam_search(tree, asked(src, bounds, prefixes), config)
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
    read: dict[int | None, int] = {}
    is_early = False
    for n_best, seed in product((1, 3, 5, 9, None), range(4)):
        tree = Tree(8, seed, eos=1.0)
        found = beam_search(tree, asked(SRC, bounds), config, n_best=n_best)
        read[n_best] = read.get(n_best, 0) + sum(map(len, tree.steps))
        is_early |= len(tree.steps) < 12
        for row, source in enumerate(SOURCES):
            assert same(found[row][:n_best], tree.patient_beam(source, config, bounds[row])[:n_best])
    assert [*read.values()] == sorted(read.values())
    assert read[1] < read[None] or config.length_penalty > 1
    assert read[5] == read[9] == read[None]
    assert is_early or config.length_penalty >= 1  # such a penalty leaves hope to the end


@pytest.mark.parametrize("seed", range(4))
def test_what_a_search_chose_among_can_be_watched_and_leads_to_what_it_found(seed: int) -> None:
    config, requests = SearchConfig(beam_size=3, length_penalty=0.6), asked(SRC[:1], up_to(9))
    steps: list[beam.BeamStep] = []

    def watch(step: beam.BeamStep) -> None:
        steps.append(beam.BeamStep(*(part.clone() for part in step)))  # the search goes on in these tensors

    found = beam_search(Tree(8, seed, eos=1.0), requests, config, on_step=watch)
    assert found == beam_search(Tree(8, seed, eos=1.0), requests, config)
    prefixes: list[list[int]] = [[]]
    ended: list[Hypothesis] = []
    for step in steps:
        likely, places = step.continued.flatten(1).topk(3)
        real = step.kept[0] > NEVER
        torch.testing.assert_close(step.kept[0][real], likely[0][real])
        assert places[0][real].tolist() == (step.rows * step.continued.size(-1) + step.tokens)[0][real].tolist()
        for row, prefix in enumerate(prefixes):
            if (score := step.ended[0, row].item()) > NEVER:
                assert score == pytest.approx(step.ends[0, row].item() / config.penalty(len(prefix) + 1))
                ended.append(Hypothesis(prefix, score))
        both = zip(step.rows[0].tolist(), step.tokens[0].tolist(), strict=True)
        prefixes = [[*prefixes[row], token] for row, token in both]
    assert sorted(ended, key=lambda hypothesis: -hypothesis.score)[:3] == found[0]
    assert steps[-1].hope.item() <= found[0][-1].score or len(steps) == 9
    steps.clear()
    BeamSearch(Tree(8), CPU, watch)(requests, SearchConfig(beam_size=1), 1)
    assert steps  # greedy search would have none


@pytest.mark.parametrize("width", [1, 3, 0], ids=["greedy", "beam", "sampling"])
def test_every_search_can_be_ended_between_two_steps(width: int) -> None:
    class EndedError(Exception):
        pass

    def search(n_steps: float) -> tuple[list[list[Hypothesis]], int]:
        n_begun = 0

        def count_step() -> None:
            nonlocal n_begun
            n_begun += 1
            if n_begun > n_steps:
                raise EndedError

        model = Interruptible(Tree(8), count_step)
        searcher = BeamSearch(model, CPU) if width else Sampling(model, CPU, SamplingConfig(3))
        return searcher([Request([4, 5], Bounds(4, 9))], SearchConfig(beam_size=width or 1), 1), n_begun

    found, n_steps = search(math.inf)
    assert found[0]
    assert n_steps > 4
    with pytest.raises(EndedError):
        search(n_steps - 1)


def test_a_step_reads_one_token_a_row_and_whoever_has_finished_leaves() -> None:
    tree = Tree(9, eos=-100.0)
    beam_search(tree, asked(SRC, FREE), SearchConfig(3))
    assert tree.starts == [5]  # a source is read once, and never copied for a beam
    assert [len(tokens) for tokens in tree.steps] == [5, 15, 15, 15, 12, 12, 9, 6, 3]
    assert tree.steps[0] == [BOS_ID] * 5


@pytest.mark.parametrize("few", [0, 2**17], ids=["short way", "topk"])
@given(
    rows=st.integers(1, 4),
    width=st.integers(1, 700),
    k=st.integers(1, 9),
    levels=st.sampled_from([2, 5, 1000]),
    never=st.sampled_from([0.0, 0.5, 0.99, 1.0]),
    seed=st.integers(0, 999),
)
def test_the_largest_are_those_of_topk_in_different_places(
    few: int, rows: int, width: int, k: int, levels: int, never: float, seed: int
) -> None:
    draw = torch.Generator().manual_seed(seed)
    values = torch.randint(levels, (rows, width), generator=draw).float()
    values[torch.rand(rows, width, generator=draw) < never] = NEVER
    k = min(k, width)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(beam, "_FEW", few)
        best, places = largest(values, k)
    assert best.equal(values.topk(k).values)
    assert values.gather(1, places).equal(best)
    assert all(len(set(row)) == k for row in places.tolist())


@given(st.lists(st.booleans(), min_size=1, max_size=80))
def test_a_batch_shrinks_in_order_through_few_heights(over: list[bool]) -> None:
    stay = drop_finished(torch.tensor(over))
    alive = [i for i, is_over in enumerate(over) if not is_over]
    height = batch_height(len(alive))
    assert len(alive) <= height <= 1.25 * len(alive)
    if stay is None:
        assert height >= len(over)
    else:
        assert stay.tolist() == sorted(set(stay.tolist()))
        assert set(alive) <= set(stay.tolist())
        assert len(stay) == height < len(over)
    assert len({batch_height(n) for n in range(1, 1025)}) < 40


# terms that must appear: "45" is that of the tokens 4 and 5


def looking_for(*terms: str, glued: str = "--") -> Wanted:
    return Wanted(terms, lambda term: {(*map(int, term),)}, lambda *pair: "".join(map(str, pair)) == glued)


def n_missing(ids: list[int], terms: Sequence[str], glued: str = "--") -> int:
    """How many of the terms are missing, by looking at every place; no other may be glued to a term."""
    said = "".join(map(str, [2, *ids, 3]))

    def times(term: str, text: str) -> int:
        places = [i for i in range(1, len(text) - len(term)) if text[i : i + len(term)] == term]
        return sum(glued not in (text[i - 1 : i + 1], text[i + len(term) - 1 :][:2]) for i in places)

    needed = {term: sum(times(term, f"2{other}3") for other in terms) for term in terms}
    return sum(max(0, n - times(term, said)) for term, n in needed.items())


@pytest.mark.parametrize("glued", ["--", "45", "54"])
@pytest.mark.parametrize(
    "terms", [["4"], ["45"], ["45", "6"], ["4", "4"], ["45", "56"], ["446"], ["45", "4"], ["44", "44"]], ids=" ".join
)
def test_a_wide_beam_finds_the_best_sequences_that_have_the_terms(terms: list[str], glued: str) -> None:
    config, bounds = SearchConfig(130), up_to(5, 4, 5, 3, 5)
    tree = Tree(7, seed=3)
    found = beam_search(tree, asked(SRC, bounds, wanted=[looking_for(*terms, glued=glued)] * 5), config)
    for row, source in enumerate(SOURCES):
        every = tree.all_translations(source, config, bounds[row])
        expected = [one for one in every if not n_missing(one.ids, terms, glued)]
        if expected:
            assert same(found[row], expected)
        else:  # "45" is glued, and cannot be found
            assert n_missing(found[row][0].ids, terms, glued) == min(n_missing(one.ids, terms, glued) for one in every)


@pytest.mark.parametrize("seed", range(4))
def test_a_narrow_beam_finds_the_terms_whatever_is_searched_for_beside_them(seed: int) -> None:
    every = [["4"], ["45", "67"], [], ["8", "8", "8"], ["456", "654"]]
    tree, config = Tree(9, seed, eos=1.0), SearchConfig(beam_size=1 + seed)
    requests = asked(SRC, up_to(12, 12, 12, 12, 12), wanted=[looking_for(*terms) for terms in every])
    found = beam_search(tree, requests, config, n_best=1)
    assert [n_missing(best.ids, terms) for (best, *_), terms in zip(found, every, strict=True)] == [0] * 5
    for row, alone in enumerate([*requests, requests[2]._replace(wanted=None)]):
        ((best, *_),) = beam_search(tree, [alone], config, n_best=1)
        assert same(found[row if row < 5 else 2][:1], [best])


def test_where_there_is_no_room_for_all_terms_the_most_are_kept() -> None:
    for terms, n_left in ((["45", "67"], 1), (["4567"], 1), (["4", "5", "6", "7", "8"], 2)):
        requests = asked(SRC, up_to(4, 4, 4, 4, 4), wanted=[looking_for(*terms)] * 5)
        found = beam_search(Tree(9), requests, SearchConfig(3))
        assert [n_missing(best.ids, terms) for best, *_ in found] == [n_left] * 5


# greedy search, and any other choice token by token


@pytest.mark.parametrize("ngram", [0, 1, 2])
@pytest.mark.parametrize("alpha", [0.0, 0.6])
@pytest.mark.parametrize("seed", range(2))
def test_each_token_is_the_likeliest_that_may_follow_those_before_it(seed: int, alpha: float, ngram: int) -> None:
    tree, config = Tree(vocab=9, seed=seed), SearchConfig(length_penalty=alpha, no_repeat_ngram=ngram)
    nothing: list[Ids] = [()] * len(SRC)
    for bounds, prefixes in (FREE, nothing), (RULED, PREFIXES):
        found = greedy_search(tree, asked(SRC, bounds, prefixes), config)
        rows = zip(SOURCES, bounds, prefixes, strict=True)
        assert same(found, [tree.greedy(source, config, bound, prefix) for source, bound, prefix in rows])
    assert greedy_search(tree, asked(SRC, FREE), config) == greedy_search(tree, asked(SRC, FREE, nothing), config)


# sampling


def draw(tree: Tree, sampling: SamplingConfig, bounds: list[Bounds]) -> Counter[Ids]:
    """How often each translation of the first source is drawn."""
    (found,) = sample(tree, asked(SRC[:1], bounds), PLAIN, sampling)
    assert len(found) == sampling.n_samples
    return Counter(tuple(ids) for ids, _ in found)


def sharpened(log_probs: dict[int, float], temperature: float) -> dict[int, float]:
    """The softmax of log-probabilities over the temperature."""
    weights = {token: math.exp(log_prob / temperature) for token, log_prob in log_probs.items()}
    return {token: weight / sum(weights.values()) for token, weight in weights.items()}


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
    assert_drawn_by(draw(tree, SamplingConfig(4000, temperature), [bounds]), probs)


@pytest.mark.parametrize(
    "among", [{"top_k": 7}, {"top_k": 9999}, {"top_p": 0.05}, {"top_p": 0.7}, {"top_p": 0.999}], ids=str
)
@pytest.mark.parametrize("scale", [0.1, 1.0, 4.0])
def test_it_is_drawn_among_the_k_likeliest_or_the_fewest_that_reach_p(among: dict[str, Any], scale: float) -> None:
    log_probs = (scale * torch.randn(7, 3000, generator=torch.Generator().manual_seed(0))).log_softmax(-1)
    scores, tokens = candidates(log_probs, SamplingConfig(**among))
    for row in range(7):
        order = np.argsort(-log_probs[row].numpy(), kind="stable")
        sums = np.cumsum(log_probs[row].double().exp().numpy()[order])
        n = among.get("top_k") or int((sums < among["top_p"]).sum()) + 1  # the one that crosses p is in
        assert {*tokens[row][scores[row] > NEVER].tolist()} == {*order[:n].tolist()}


def test_every_number_has_its_token_and_none_falls_on_what_cannot_be() -> None:
    """And small probabilities behind large ones are not lost."""
    probs = torch.tensor([0.0, 0.25, 0.0, 0.5, 0.25, 0.0])
    draws = torch.tensor([0.0, 0.2, 0.25, 0.6, 0.75, math.nextafter(1.0, 0.0)], dtype=torch.float64)
    assert inverse_cdf(probs.expand(6, -1), draws).tolist() == [1, 1, 3, 3, 4, 4]
    probs = torch.full((1, 30001), 1e-9)
    probs[0, 0] = 1 - 3e-5
    assert inverse_cdf(probs, torch.tensor([1 - 1e-5]).double()).item() == pytest.approx(20_000, rel=0.01)


def test_what_is_drawn_depends_on_seed_and_number_alone() -> None:
    tree = Tree(60, eos=-9.0)

    def drawn(seed: int, number: int) -> Ids:
        request = asked(SRC[:1], up_to(12), numbers=[number])
        return (*sample(tree, request, PLAIN, SamplingConfig(seed=seed))[0][0].ids,)

    outcomes = {(seed, number): drawn(seed, number) for seed in range(5) for number in (0, 1, 2, 2**40)}
    assert len({*outcomes.values()}) == 20
    assert all(drawn(*key) == ids for key, ids in outcomes.items())


@pytest.mark.parametrize("temperature", [0.5, 3.0])
@pytest.mark.parametrize("ngram", [0, 1, 2])
def test_rules_are_kept_and_scores_are_the_models_own(ngram: int, temperature: float) -> None:
    bounds = [Bounds(2, 5), Bounds(0, 2), Bounds(3, 4), Bounds(1, 9), Bounds(0, 3)]
    prefixes: list[Ids] = [(), (4,), (5, 4, 4, 6, 6), (6, 6), ()]  # one longer than its bounds
    config = SearchConfig(length_penalty=0.7, no_repeat_ngram=ngram)
    tree = Tree(8, seed=6, forbidden=3.0)
    found = sample(tree, asked(SRC, bounds, prefixes), config, SamplingConfig(30, temperature))
    for row, source in enumerate(SOURCES):
        possible = {(*ids,): score for ids, score in tree.all_translations(source, config, bounds[row], prefixes[row])}
        for ids, score in found[row]:
            assert score == pytest.approx(possible[(*ids,)], abs=1e-4)
        assert ngram == 0 or row == 2 or not any(repeats((*ids,)[len(prefixes[row]) :], ngram) for ids, _ in found[row])
    assert len({len(ids) for ids, _ in found[3]}) > 2


# all searches, and ensembles

Search = Callable[[Searchable[Any], list[Request]], list[list[Hypothesis]]]
SEARCHES: list[Search] = [
    lambda model, requests: [[best] for best in greedy_search(model, requests, SearchConfig())],
    lambda model, requests: beam_search(model, requests, SearchConfig(3, no_repeat_ngram=2)),
    lambda model, requests: sample(model, requests, PLAIN, SamplingConfig(4, top_p=0.95)),
]


searches = pytest.mark.parametrize("search", SEARCHES, ids=["greedy", "beam", "sampling"])


@searches
def test_company_and_order_do_not_matter(search: Search) -> None:
    together = search(NETWORK, requests := asked(SRC, FREE))
    shuffled = search(NETWORK, [requests[i] for i in ORDER])
    for place, row in enumerate(ORDER):
        (alone,) = search(NETWORK, [requests[row]])
        assert same(shuffled[place], together[row])
        assert same(alone, together[row])
    assert len({tuple(n_best[0].ids) for n_best in together}) == len(SRC)


@searches
def test_what_is_no_number_is_no_translation(search: Search) -> None:
    with pytest.raises(ValueError, match="not finite numbers: use precision fp32"):
        search(Tree(8, eos=math.nan), asked(SRC, RULED))


class Mean(Tree):
    """The tree whose probabilities are the mean of those of other trees."""

    def __init__(self, trees: Sequence[Tree]) -> None:
        super().__init__(trees[0].vocab)
        self.trees = trees

    def logits(self, source: Ids, said: Ids) -> list[float]:
        probs = [torch.tensor(tree.logits(source, said), dtype=torch.float64).softmax(-1) for tree in self.trees]
        return torch.stack(probs).mean(0).log().tolist()


@searches
def test_models_that_do_not_agree_are_the_mean_of_their_probabilities(search: Search) -> None:
    trees = [Tree(9, seed=1), Tree(9, seed=2, eos=1.0), Tree(9, seed=3, forbidden=1.0)]
    found = search(Ensemble(trees), requests := asked(SRC, FREE))
    assert all(map(same, found, search(Mean(trees), requests)))
    assert all(found != search(tree, requests) for tree in trees)


GREEDY, BEAM = SearchConfig(beam_size=1, max_length=8), SearchConfig(beam_size=3, max_length=8)
LINE = TEXT.src[0]
WORD = 4  # what Echo says for what it does not know


def translator(
    search: SearchConfig = GREEDY, window: int = 48, searcher: Searcher | None = None, longest: int = 48, **rest: Any
) -> Translator:
    return Translator(searcher or BeamSearch(translating(), CPU), tokenizers(), "en", search, window, longest, **rest)


def n_tokens(text: str) -> int:
    return len(tokenizers().src.encode([text])[0])


class Echo(NamedTuple):
    """A searcher that says the ids that it reads."""

    tokens_per_batch: int

    def __call__(self, requests: Sequence[Request], *_: object) -> list[list[Hypothesis]]:
        return [[Hypothesis([WORD if i == UNK_ID else i for i in request.source], 0.0)] for request in requests]


OFTEN = 2  # as it is outside of the tests


@pytest.mark.parametrize(
    ("text", "source", "expected"),
    [
        ("He draws fusuma-e (a sliding sliding sliding sliding", "襖絵を描く。", True),
        ("the Rinzai sect, the Rinzai sect, the Rinzai sect, the", "臨済宗である。", True),
        ("一貫して一貫して一貫して優勢な", "It was always strong.", True),
        ("In detail........................", "詳しく", True),
        ("Yes, yes, yes, yes, yes", "はい、はい、はい、はい、はい", False),
        ("It is very, very old, and very, very large.", "とても古く、とても大きい。", False),
        ("Contents ............ 3", "目次・・・・・・・・・・・・ 3", False),
        ("It cost 1,000,000,000,000 yen and www.aaa.org is 10000000000.", "一兆円で", False),
        ("the temple of the capital of the province of the king", "王国の都の寺", False),
    ],
)
def test_a_loop_repeats_more_often_than_its_source(
    text: str, source: str, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("utils.text.loop.OFTEN", OFTEN)
    assert is_loop(text, source) is expected


class Looping(NamedTuple):
    """A searcher that repeats what it reads five times; where no n-gram may be repeated, so many times as said."""

    blocked: int
    calls: list[tuple[int, int, int]]  # of how many requests, what was blocked, and how wide the beam was
    tokens_per_batch: int = 999

    def __call__(self, requests: Sequence[Request], config: SearchConfig, *_: object) -> list[list[Hypothesis]]:
        self.calls.append((len(requests), config.no_repeat_ngram, config.beam_size))
        times = self.blocked if config.no_repeat_ngram else 5
        return [
            [Hypothesis([*tokenizers().tgt.encode(["temple " * (1 if len(request.source) > 4 else times)])[0]], -1.0)]
            for request in requests
        ]


def test_a_loop_is_searched_again_or_else_cut_and_both_are_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("utils.text.loop.OFTEN", OFTEN)
    for blocked, expected, done in ((2, "temple temple", SEARCHED_AGAIN), (4, "temple", CUT)):
        calls: list[tuple[int, int, int]] = []
        found, plain = translator(SearchConfig(beam_size=3), searcher=Looping(blocked, calls)).translate(["寺", LINE])
        assert (found.text, found.loop, plain.loop) == (expected, done, "")
        assert calls == [(2, 0, 3), (1, 3, 1)]  # only the loop
        best = found.candidates[0]
        assert tokenizers().tgt.decode([best.ids]) == [expected]
        assert len(best.tokens) == len(best.ids)
    (found,) = translator(SearchConfig(beam_size=3), searcher=Looping(2, calls := [])).translate(["寺寺寺"])
    assert (found.text, found.loop, calls) == ("temple temple temple", CUT, [(1, 0, 3)])  # as often as the source


@settings(max_examples=40)
@given(
    texts=st.lists(st.text("京都に古い寺がある。 \u3000ж", max_size=12), max_size=9),
    width=st.integers(1, 3),
    budget=st.sampled_from([1, 30, 8192]),
)
def test_any_list_of_texts_keeps_its_order_and_each_is_told_of_once(texts: list[str], width: int, budget: int) -> None:
    progress: list[int] = []
    found = translator(SearchConfig(width), 99, Echo(budget), 99).translate(texts, progress.append)
    assert sum(progress) == len(found) == len(texts)
    for text, translation in zip(texts, found, strict=True):
        ids = [i if i != UNK_ID else WORD for piece in translation.pieces for i in piece.ids]
        assert translation.candidates[0].tokens == tokenizers().tgt.tokens(ids)
        sources = "".join(piece.source or piece.gap for piece in translation.pieces)
        assert "".join(sources.split()) == "".join(text.split())
        assert translation.unknown == (bool(text.strip()) and not text.replace("ж", "").strip())
        assert not translation.unknown or translation.text == text


@given(st.lists(st.integers(1, 40), max_size=60), st.sampled_from([1, 9]), st.integers(1, 3000))
def test_batches_within_a_budget_hold_each_sequence_once_longest_first_with_little_padding(
    lengths: list[int], n_times: int, budget: int
) -> None:
    """And none is smaller than it must be."""
    lengths = lengths * n_times  # large batches of many lengths, too
    rows = list(within_budget(lengths, budget))
    batches = [[lengths[i] for i in batch] for batch in rows]
    assert sorted(chain(*rows)) == list(range(len(lengths)))
    assert list(chain(*batches)) == sorted(lengths, reverse=True)
    for batch, after in pairwise([*batches, [0]]):
        assert len(batch) == 1 or len(batch) * batch[0] <= budget
        assert len(batch) <= 128 or batch[-1] >= 0.7 * batch[0]
        assert (len(batch) + 1) * batch[0] > budget or (len(batch) >= 128 and after[0] < 0.7 * batch[0]) or after == [0]


@pytest.mark.parametrize("sampling", [None, SamplingConfig(n_samples=3)], ids=["beam", "sampling"])
def test_the_batches_keep_to_their_budget_for_all_rows(
    sampling: SamplingConfig | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(NetworkSearch, "tokens_per_batch", 120)
    model = translating()
    # three rows a sentence, either way
    searcher = Sampling(model, CPU, sampling) if sampling else BeamSearch(model, CPU)
    ours = translator(GREEDY if sampling else BEAM, searcher=searcher)
    monkeypatch.setattr(model, "start", reader := Mock(wraps=model.start))
    ours.translate(texts := [LINE, "寺", LINE.replace("。", "、") + LINE, "橋", *TEXT.src[:9]])
    read = [src for (src,), _ in reader.call_args_list]
    assert all(3 * src.numel() <= 120 or len(src) == 1 for src in read)
    assert all(3 * (src.numel() + src.size(1)) > 120 for src in read[:-1])  # and there is no room for one more
    assert sum(len(src) for src in read) == len(texts)


def test_a_text_is_translated_sentence_by_sentence() -> None:
    sentences = TEXT.src[:9]
    ours = translator(BEAM)
    (found,) = ours.translate(["".join(sentences)], n_best=2)
    assert [piece.source for piece in found.pieces] == sentences
    alone = ours.translate(sentences, n_best=2)
    assert [piece.candidates for piece in found.pieces] == [one.candidates for one in alone]
    for rank, joined in enumerate(found.candidates):  # those of equal rank are joined
        parts = [one.candidates[rank] for one in alone]
        assert joined.text == " ".join(part.text for part in parts)
        assert joined.tokens == [token for part in parts for token in part.tokens]
        assert joined.score == pytest.approx(sum(part.score for part in parts), abs=1e-3)
    ours.tgt_lang = "ja"
    assert ours.translate(["".join(sentences)])[0].text == found.text.replace(" ", "")
    ours.search = replace(ours.search, by_sentence=False)
    (whole,) = ours.translate(["".join(sentences[:2])])
    assert len(whole.pieces) == 1


CASED = WordTokenizer(
    ["the", "The", "temple", "is", "not", "old", "old.", "Kyoto", "in", "NHK", "KYOTO", "寺"], lowercase=False
)


@pytest.mark.parametrize(
    ("text", "sources", "translation"),
    [
        ("THE TEMPLE IN KYOTO", ["The temple in Kyoto"], "THE TEMPLE IN KYOTO"),
        ("THE TEMPLE IS OLD.\nNHK", ["The temple is old.", "NHK"], None),
        ("The temple is old. THE TEMPLE IS NOT OLD.", ["The temple is old.", "The temple is not old."], None),
        ("NHK KYOTO", ["NHK KYOTO"], None),
        ("XXXX YYYY ZZZZ", ["XXXX YYYY ZZZZ"], None),
        ("寺 NHK KYOTO NHK", ["寺 NHK KYOTO NHK"], None),
        ("the NHK in KYOTO", ["the NHK in KYOTO"], None),
    ],
)
def test_what_is_in_capitals_is_read_in_its_usual_case_and_translated_in_capitals(
    text: str, sources: list[str], translation: str | None
) -> None:
    ours = Translator(Echo(99), TokenizerPair(CASED, CASED), "en", GREEDY, 48, 48)
    (found,) = ours.translate([text])
    assert [piece.masked.text or piece.source for piece in found.pieces if piece.source] == sources
    assert (found.text, found.unknown_tokens) == (translation or text, [])
    ours.tgt_lang = "ja"
    assert ours.translate([text])[0].text.replace("\n", "").strip() == "".join(sources)


@pytest.mark.parametrize(
    ("text", "read"),
    [
        ("You MUST NOT ask; DO NOT enter.", "You must not ask; do not enter."),
        ("STOP! It is a TEMPLE.", "Stop! It is a temple."),
        ("DATE Masamune and CHEN Wei, of the NHK and UNESCO", "DATE Masamune and CHEN Wei, of the NHK and UNESCO"),
        (f"{'NA' * 30}X", f"N{'an' * 29}ax"),  # in time
    ],
)
def test_words_in_capitals_among_others_are_read_in_small_letters_where_the_vocabulary_has_those(
    text: str, read: str
) -> None:
    def encode(words: Sequence[str]) -> list[list[int]]:
        return [[0] * (len(word) if word.isupper() or word == "unesco" else 1) for word in words]

    assert without_emphasis(text, encode) == read


def test_line_breaks_stay_and_other_gaps_are_those_of_the_language() -> None:
    ours = translator()
    first, second = (one.text for one in ours.translate(TEXT.src[:2]))
    (found,) = ours.translate([f" {TEXT.src[0]}　{TEXT.src[1]} \r\n\n{TEXT.src[0]}\n"])
    assert found.text == f" {first} {second} \r\n\n{first}\n"


def test_what_stands_around_the_texts_of_a_line_stays_and_is_not_read() -> None:
    ours, table = inspector(), f"| {TEXT.src[0]}{LINE} |\t1,200 | {TEXT.src[77]} |  \n・{LINE}\n| --- |\r\n"
    a, b, c = (one.text for one in ours.translator.translate([TEXT.src[0], LINE, TEXT.src[77]]))
    found, rule, begun = ours.translator.translate([table, "----", f"# {LINE}"], prefixes=["", "", "There"])
    assert found.text == f"| {a} {b} |\t1,200 | {c} |  \n・{b}\n| --- |\r\n"
    assert (rule.text, rule.unknown, begun.text[:7]) == ("----", False, "# There")
    (spans,), words = ours.span_links([table], [found]), ours.words([rule])[0]
    assert all(table[slice(*source)] in TEXT.src[0] + LINE + TEXT.src[77] for source, _ in spans)
    assert all(found.text[slice(*span)] in f"{a} {b} {c}" for _, span in spans)
    assert (words.source, words.target, words.links) == (["----"], ["----"], [(0, 0)])


def test_what_the_model_cannot_hold_is_split_at_commas_and_nothing_is_lost() -> None:
    long = "、".join(["京都に古い寺がある"] * 9) + "。"
    ours = translator(window=max(n_tokens(long) // 4, n_tokens(LINE)) + 1)
    (found,) = ours.translate([long + LINE])
    assert "".join(piece.source for piece in found.pieces) == long + LINE
    assert all(len(piece.ids) < ours.window and piece.ids for piece in found.pieces)
    assert found.pieces[0].source.endswith("、")
    assert found.text == " ".join(one.text for one in ours.translate([piece.source for piece in found.pieces]))


def test_where_a_piece_has_fewer_candidates_its_last_stands_in(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = translator(BEAM, window=n_tokens(LINE) + 1)
    found = [[Hypothesis([18], -1.0), Hypothesis([19], -2.0), Hypothesis([20], -4.0)], [Hypothesis([21], -8.0)]]
    monkeypatch.setattr(ours, "find", lambda *_: found)
    (joined,) = ours.translate([LINE * 2], n_best=3)
    assert [(c.text, c.score) for c in joined.candidates] == [("e r", -9.0), ("i r", -10.0), ("a r", -12.0)]


def test_what_is_unknown_stays_where_it_was_and_is_told() -> None:
    ours, progress = translator(), list[int]()
    both, alone, first, last = ours.translate([LINE * 2, LINE, "寺。", TEXT.src[50]], progress.append)
    assert progress == [0, 4]  # a text in two pieces is one
    (found,) = ours.translate([f"{LINE}жж！{TEXT.src[50]}"])
    assert found.text == f"{alone.text} жж！ {last.text}"
    assert (len(found.pieces), found.unknown, found.unknown_tokens) == (3, False, [])
    (alien,) = ours.translate(["ж！" * 30])
    assert (alien.text, alien.unknown) == ("ж！" * 30, True)
    assert (both.text, first.unknown_tokens) == (f"{alone.text} {alone.text}", [])
    (partly,) = ours.translate(["ж寺"])
    assert partly.unknown_tokens == ["ж"]
    assert "ж" in ours.source_tokens(partly.pieces[0])


def test_signs_alone_stay_as_they_are_and_nothing_is_said() -> None:
    ours = translator()
    for text in ("。", "……", "！ ？", "→", "😀。", "---"):
        (found,) = ours.translate([text])
        assert (found.text, found.unknown, found.wordless) == (text, False, [])
    (found,) = ours.translate([f"{LINE}\n……！\n{LINE}"])
    assert found.text.splitlines()[1] == "……！"


def test_a_translation_without_words_gives_way_to_a_longer_one_or_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = translator(BEAM)
    mark, word = (ours.tokenizers.tgt.encode([text])[0] for text in (".", "old"))
    lengths = list[int]()

    def find(requests: Sequence[Request], *_: object) -> list[list[Hypothesis]]:
        lengths.extend(request.bounds.min_length for request in requests)
        found = {"寺": [mark, word], "橋": [mark], "川": [word, mark]}
        again = {"寺": [[*mark, *mark], [*word, *mark], word], "橋": [[*mark, *mark]]}
        of = {tuple(ours.tokenizers.src.encode([text])[0]): text for text in found}
        which = [(again if request.bounds.min_length else found)[of[tuple(request.source)]] for request in requests]
        return [[Hypothesis(ids, -1.0) for ids in best_first] for best_first in which]

    monkeypatch.setattr(ours, "find", find)
    temple, bridge, river = ours.translate(["寺", "橋", "川"])
    assert [one.text for one in (temple, bridge, river)] == ["old .", ".", "old"]
    assert [one.wordless for one in (temple, bridge, river)] == [[], ["橋"], []]
    assert lengths == [0, 0, 0, len(mark) + 1, len(mark) + 1]
    assert notices(bridge)["not translated"] == "the translation has no word of 橋"


def test_the_prefix_of_a_long_text_is_that_of_its_first_piece() -> None:
    ours = translator(window=16)
    other, found = ours.translate([TEXT.src[7], "".join(TEXT.src[:3])], prefixes=["", "in Kyoto"])
    first = ours.translate([TEXT.src[0]], prefixes=["in Kyoto"])[0].text
    rest = [t.text for t in ours.translate([*TEXT.src[1:3], TEXT.src[7]])]
    assert found.text == " ".join([first, *rest[:2]])
    assert other.text == rest[2]


def test_a_prefix_leaves_room_for_the_end() -> None:
    n = len(tokenizers().tgt.encode(["There is"])[0])
    with pytest.raises(ValueError, match=f"the prefix has {n} tokens, the model holds {n - 1}"):
        translator(longest=n).translate([LINE], prefixes=["There is"])


@pytest.mark.parametrize("search", [GREEDY, BEAM], ids=["greedy", "beam"])
def test_a_table_of_positions_is_never_left_and_the_settings_of_the_search_reach_it(search: SearchConfig) -> None:
    model = translating(replace(MODEL, positions="learned", max_length=12))
    ours = translator(replace(search, max_length=99), 12, BeamSearch(model, CPU), longest=12)
    found = ours.find([*map(ours.request, [[5, *range(20, 30)], [6], [7, 8]])])
    assert max(len(n_best[0].ids) for n_best in found) == 11
    texts = tokenizers().src.encode(TEXT.src[:4])
    ours = translator(replace(search, no_repeat_ngram=1, min_length=9, max_length=9))
    for (ids, _), *_ in ours.find([*map(ours.request, texts)]):
        assert len(ids) == len(set(ids)) == 9


ODD = ["", " ", "a", "ab", "aaaaaaaa", "aaaa aaaa", "京都の古い寺", "京都 の 寺", "the old temple", "The old temple."]


def varied(n: int, seed: int) -> list[str]:
    """Like samples of one sentence: words of it, some of them changed, some of them left out."""
    draw = random.Random(seed)
    words = ["the", "old", "temple", "by", "the", "river", "in", "the", "east", "of", "Kyoto", "was", "built"]
    kept = [[word for word in words if draw.random() < 0.8] for _ in range(n)]
    return [" ".join(draw.choice(words) if draw.random() < 0.2 else word for word in sentence) for sentence in kept]


def test_chrf_is_that_of_sacrebleu_and_the_order_that_of_its_mean_by_votes() -> None:
    texts, metric = [*(drawn := varied(14, 1)), *ODD, *drawn[:3]], CHRF()
    theirs = np.array([[metric.sentence_score(text, [other]).score for other in texts] for text in texts])
    for i in range(len(texts)):
        assert expected_chrf(texts, np.eye(len(texts))[i]) == pytest.approx(theirs[:, i], abs=1e-9)  # one reference
    for votes in ([1.0] * len(drawn), [0.5 + i % 7 for i in range(len(drawn))]):
        mean = theirs[: len(drawn), : len(drawn)] @ votes / sum(votes)
        assert expected_chrf(drawn, votes) == pytest.approx(mean, abs=0.5)
        assert by_expected_chrf(drawn, votes) == np.argsort(-mean, kind="stable").tolist()
    assert by_expected_chrf(texts, [1.0] * len(texts))[0] == theirs.mean(1).argmax()


TERMS = {"京都": "Uji", "京": "a temple", "古い寺": "old temple", "寺": "temple", "cat": "Nara"}


def test_terms_are_those_of_the_text_the_longest_and_never_inside_a_word() -> None:
    known = Glossary(TERMS, tokenizers().tgt)
    for text, targets in (
        ("京都に古い寺がある。", ["Uji", "old temple"]),
        ("古い京の寺と寺", ["a temple", "temple", "temple"]),
        ("a cat, catcat, category cat9 _cat (cat)の猫cat", ["Nara"] * 3),  # as `cat` beside kanji is a word
        ("Cat か\u3099", []),
    ):
        assert [term for term, _ in known.coverage(text, [])] == targets
        assert not any(is_there for _, is_there in known.coverage(text, []))
    decomposed = Glossary({"が": "Uji"}, tokenizers().tgt)
    assert len(decomposed.coverage("か\u3099が", [])) == 2


def test_a_japanese_term_begins_where_a_word_does_and_is_no_part_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    terms = dict.fromkeys(("京都", "京都市", "都", "寺", "カー", "渉成園", "親王", "cat"), "Nara")
    found = {
        "東京都は都である。": [(2, 3), (4, 5)],
        "京都市内と京都府": [(0, 3), (5, 7)],
        "金閣寺は\u3000古い寺 と寺院": [(7, 8)],
        "カーペットとカーとcategoryの猫cat": [(6, 8), (19, 22)],
        "渉成園内で内親王が親王に\n京都": [(0, 3), (9, 11), (13, 15)],
        "": [],
    }
    for text, places in found.items():
        assert Glossary(terms, tokenizers().tgt, "ja").places(text) == places
    assert Glossary(terms, tokenizers().tgt, "zh").places("東京都") == [(1, 3)]
    with monkeypatch.context() as patch:
        patch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.TokenizerJaMecab", None)  # its dictionary is read once
        assert Glossary(terms, tokenizers().tgt, "ja").places("東京都") == [(2, 3)]
    monkeypatch.setattr("sacrebleu.tokenizers.tokenizer_ja_mecab.MeCab", None)
    monkeypatch.setattr("utils.search.glossary._mecab", glossary._mecab.__wrapped__)
    assert Glossary(terms, tokenizers().tgt, "ja").places("東京都") == [(1, 3)]


def test_a_term_counts_where_it_is_no_part_of_a_word_and_not_for_two_at_once() -> None:
    known, tgt = Glossary(TERMS, tokenizers().tgt), tokenizers().tgt

    def coverage(text: str, translation: str) -> list[bool]:
        (ids,) = tgt.encode([translation])
        found = [is_there for _, is_there in known.coverage(text, ids)]
        assert known.wanted(text).accepts(ids) == all(found)
        return found

    assert coverage("京都", "in Uji.") == coverage("京都", "Uji") == [True]
    assert coverage("京都", "Ujin") == coverage("京都", "in aUji") == coverage("京都", "uji") == [False]
    assert coverage("寺、寺", "temple, temple.") == [True, True]
    assert coverage("寺、寺", "temple, temples.") == [True, False]
    assert coverage("古い寺と寺", "an old temple and a temple") == [True, True]
    assert coverage("古い寺と寺", "an old temple and a shop") == [True, False]  # the one in "old temple" is its own


@pytest.mark.parametrize("search", [GREEDY, BEAM], ids=["greedy", "beam"])
def test_what_has_no_term_or_has_them_all_is_translated_as_ever(search: SearchConfig) -> None:
    ours, texts = translator(replace(search, max_length=20)), [LINE, *TEXT.src[18:42], "寺", LINE + TEXT.src[77], ""]
    plain, begun = ours.translate(texts, n_best=2), ours.translate([LINE], prefixes=["Uji is"])[0]
    ours.glossary = Glossary({"京都": "Uji", "奈良": "Nara"}, ours.tokenizers.tgt)
    found = ours.translate(texts, n_best=2)
    n_asked = 0
    for text, before, after in zip(texts, plain, found, strict=True):
        asked = [term for place, term in (("京都", "Uji"), ("奈良", "Nara")) if place in text]
        assert after.terms == [(term, True) for term in asked]
        assert all(term in one.text for one in after.candidates for term in asked)
        assert asked or after == before._replace(terms=[])
        n_asked += bool(asked)
    assert 0 < n_asked < len(texts) - 3
    assert found[-2].pieces[1] == plain[-2].pieces[1]  # a sentence without terms beside one that has some
    assert ours.translate([LINE], prefixes=["Uji is"])[0] == begun._replace(terms=[("Uji", True)])


def test_candidates_may_be_ordered_by_how_much_they_agree() -> None:
    texts, wide = TEXT.src[:12], replace(BEAM, beam_size=6)
    by_risk = translator(wide, minimum_bayes_risk=True).translate(texts, n_best=4)
    as_by_score = as_equal_votes = 0
    for found, by_score in zip(by_risk, translator(wide).translate(texts, n_best=6), strict=True):
        candidates = [candidate.text for candidate in by_score.candidates]
        likely = [math.exp(wide.log_prob(one.score, len(one.tokens) + 1)) for one in by_score.candidates]
        assert [c.text for c in found.candidates] == [candidates[i] for i in by_expected_chrf(candidates, likely)[:4]]
        as_by_score += found.text == candidates[0]
        as_equal_votes += found.text == candidates[by_expected_chrf(candidates, [1.0] * len(candidates))[0]]
    assert max(as_by_score, as_equal_votes) < len(texts)
    draws = translator(searcher=Sampling(translating(), CPU, SamplingConfig(8, 0.5)))
    by_risk = replace(draws, minimum_bayes_risk=True).translate(texts, n_best=8)
    for found, drawn in zip(by_risk, draws.translate(texts, n_best=8), strict=True):
        candidates = [candidate.text for candidate in drawn.candidates]
        assert [c.text for c in found.candidates] == [candidates[i] for i in by_expected_chrf(candidates, [1.0] * 8)]


# probabilities of given translations, and what else was likely


IDS = [list(source[:-1]) for source in SOURCES]
TARGETS = [[4, 5, 6], [], [22, 4, 1, 7, 9, 9, 10], [8], [5, 5, 5, 5]]


@pytest.mark.parametrize("tokens_per_batch", [9, 4096])
def test_each_token_has_the_probability_of_its_step_in_any_batch(
    tokens_per_batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected: list[list[float]] = []
    for src, tgt in zip(IDS, TARGETS, strict=True):  # one token after the other
        state = NETWORK.start(torch.tensor([[*src, EOS_ID]]))
        expected.append([])
        for before, token in zip([BOS_ID, *tgt], [*tgt, EOS_ID], strict=True):
            logits, state = NETWORK.step(torch.tensor([before]), state)
            expected[-1].append(logits[0].log_softmax(-1)[token].item())
    monkeypatch.setattr(forced, "_TOKENS_PER_BATCH", tokens_per_batch)
    monkeypatch.setattr(forced, "_POSITIONS_AT_ONCE", 3)
    exact, rounded = (packed(NETWORK, dtype) for dtype in (torch.float32, torch.bfloat16))
    for model, rel in ((NETWORK, 1e-4), (exact, 1e-4), (rounded, 0.2)):
        for ours, theirs in zip(token_log_probs(model, IDS, TARGETS), expected, strict=True):
            assert ours == pytest.approx(theirs, rel=rel, abs=1e-4)


@pytest.mark.parametrize("k", [1, 3, 99])
def test_alternatives_are_the_likeliest_after_the_prefix(k: int) -> None:
    tree, prefix = Tree(9, seed=2, forbidden=2.0), [6, 6, 5]
    log_probs = tree.log_probs((*IDS[0], EOS_ID), tuple(prefix))
    best = sorted(log_probs.items(), key=lambda item: -item[1])[:k]
    found = alternatives(tree, IDS[0], prefix, k, CPU)
    assert len(found) == len(prefix) + 1
    assert [token for token, _ in found[-1]] == [token for token, _ in best]
    assert [log_prob for _, log_prob in found[-1]] == pytest.approx([log_prob for _, log_prob in best], abs=1e-5)


SEARCH = SearchConfig(beam_size=3, max_ratio=1.0)
TEXTS = [TEXT.src[0], "", TEXT.src[77], "ж", TEXT.src[0] + TEXT.src[1] + TEXT.src[2], "寺"]


def inspector(models: Sequence[Transformer] | None = None, search: SearchConfig = SEARCH) -> Inspector:
    models = models or [translating()]
    model = models[0] if len(models) == 1 else Ensemble(models)
    return Inspector(translator(search, 14, BeamSearch(model, CPU)), models)


@pytest.mark.parametrize("seeds", [[1], [1, 2]], ids=["one", "ensemble"])
def test_the_log_probs_of_a_translation_add_up_to_its_score(seeds: list[int]) -> None:
    ours = inspector([translating(seed=seed) for seed in seeds])
    translations = ours.translator.translate(TEXTS)
    assert [len(translation.pieces) for translation in translations] == [1, 0, 1, 1, 3, 1]
    assert translations[3].unknown
    for translation, row in zip(translations, ours.log_probs(translations), strict=True):
        left = iter(row)
        for piece in translation.pieces:
            own = list(islice(left, len(piece.best.tokens) + 1)) if piece.ids else []
            assert sum(own) / SEARCH.penalty(max(1, len(own))) == pytest.approx(piece.best.score, abs=1e-3)
        assert not list(left)


def test_links_and_words_go_on_from_sentence_to_sentence() -> None:
    ours, texts = inspector(), [TEXT.src[0], "ж 寺！", TEXT.src[77]]
    first, unread, last = (ours.translator.translate([text])[0] for text in (texts[0], "ж！", texts[2]))
    (found,) = ours.translator.translate([texts[0] + "ж！" + texts[2]])
    (begin,), (end,), (all_links,) = (ours.alignments([one]) for one in (first, last, found))
    n_source, n_target = len(ours.source_tokens([first])[0]), len(first.candidates[0].tokens)
    assert all_links == begin + [(n_source + i, n_target + j) for i, j in end]
    before, unchanged, after = ours.words([first, unread, last])
    (words,) = ours.words([found])
    assert words.source == [*before.source, "ж！", *after.source]
    assert words.target == before.target + unchanged.target + after.target
    assert (unchanged.source, unchanged.links) == (["ж！"], [(0, 0)])
    assert len(words.links) == len(before.links) + 1 + len(after.links)


def test_links_of_characters_are_those_of_the_tokens_that_they_make_up() -> None:
    ours, text = inspector(), f"{TEXT.src[0]} ж！{TEXT.src[77]}"
    (found,) = ours.translator.translate([text])
    tokens, target, (links,) = ours.source_tokens([found])[0], found.candidates[0].tokens, ours.alignments([found])
    named = [(tokens[i].strip("▁"), target[j].strip("▁")) for i, j in links if tokens[i] != "▁"]
    (spans,) = ours.span_links([text], [found])
    assert [(text[slice(*source)], found.text[slice(*span)]) for source, span in spans] == named
    assert [source for source, _ in spans if source[0] > text.index("！")]
    assert inspection._spans(["<2en>", "▁ガ", "イド", "tgt"], " ｶﾞイド TGT", 5) == [(5, 5), (6, 8), (8, 10), (11, 14)]


def test_no_link_leads_to_a_tag() -> None:
    pair = tagged_tokenizers()
    model = lively(MODEL, len(pair.src), len(pair.tgt))
    ours = Inspector(replace(translator(SEARCH, 14, BeamSearch(model, CPU)), tokenizers=pair), [model])
    found = ours.translator.translate([TEXT.src[i] for i in (0, 3, 77)])
    sources, targets = [one.pieces[0].ids for one in found], [one.candidates[0].ids for one in found]
    weights = mean_cross_attention([model], sources, targets)
    assert any(row.argmax() < 2 for matrix in weights for row in matrix[:, :-1])  # the tags <2en> and <law>
    expected = [[(2 + int(row[2:-1].argmax()), t) for t, row in enumerate(matrix)] for matrix in weights]
    assert ours.alignments(found) == expected
    for one, words, tokens in zip(found, ours.words(found), ours.source_tokens(found), strict=True):
        assert "".join(words.source) == "".join(tokens[2:]).replace("▁", "") == one.pieces[0].source


def test_given_translations_are_scored_token_by_token_and_what_is_lost_is_counted() -> None:
    long, (src, tgt) = "".join(TEXT.src[:8]), tokenizers()
    texts, given = [TEXT.src[3], "", long, "寺", "寺"], [TEXT.tgt[3], "", "There", "A ж", "in " * 99]
    found, nothing, truncated, unknown, both = inspector().scores(texts, given)
    (ids,) = tgt.encode(given[:1])
    assert found.tokens == [*tgt.tokens(ids), EOS]
    assert found.log_probs == pytest.approx(token_log_probs(translating(), src.encode(texts[:1]), [ids])[0], abs=1e-4)
    assert found.perplexity == pytest.approx(math.exp(-sum(found.log_probs) / len(found.tokens)))
    assert (found.lost_tokens, found.n_unknown) == (0, 0)
    assert (nothing.tokens, nothing.log_prob, nothing.perplexity) == ([], 0, 1)
    diverged = found._replace(log_probs=[-1e9] * len(found.tokens)).perplexity
    assert 1e300 < diverged < math.inf  # which is a number in JSON, too
    assert truncated.lost_tokens == n_tokens(long) - 13
    assert (unknown.n_unknown, unknown.lost_tokens) == (1, 0)
    assert len(both.tokens) == 48
    assert both.lost_tokens == len(tgt.encode(given[-1:])[0]) - 47


def test_alternatives_are_those_of_each_position_or_of_the_one_behind_a_prefix() -> None:
    ours, prefix = inspector(search=SearchConfig(beam_size=1, max_ratio=1.0)), "There is"
    found, begun = ours.translator.translate(["寺"] * 2, prefixes=["", prefix])
    positions, tokens = ours.positions(found, 3), found.candidates[0].tokens
    assert [position.number for position in positions] == list(range(1, len(tokens) + 2))
    assert [position.token for position in positions] == [*tokens, EOS]
    # greedy search said what was likeliest, but for its last token, which had to be </s>
    assert [position.likeliest[0][0] for position in positions[:-1]] == tokens
    (position,) = ours.positions(begun, 2, prefix)
    assert position == ours.positions(begun, 2)[len(tokenizers().tgt.encode([prefix])[0])]


READ, WRITTEN = [5, 6, 7, 8, 9], [10, 11, 12]


@pytest.mark.parametrize("norm_first", [False, True], ids=["norm last", "norm first"])
def test_a_layer_already_says_what_a_network_that_ends_there_would_say(norm_first: bool) -> None:
    whole = translating(replace(MODEL, norm_first=norm_first, n_decoder_layers=3))
    src, tgt = torch.tensor([[*READ, EOS_ID]]), torch.tensor([[BOS_ID, *WRITTEN]])
    for n_layers, guess in enumerate(layer_guesses(whole, READ, WRITTEN), start=1):
        shorter = translating(replace(whole.config, n_decoder_layers=n_layers))
        shorter.load_state_dict({name: whole.state_dict()[name] for name in shorter.state_dict()})
        torch.testing.assert_close(guess, shorter(src, tgt)[0])
    assert n_layers == 3
    torch.testing.assert_close(guess, whole(src, tgt)[0])
    assert not any(block._forward_hooks for block in whole.decoder)
    torch.testing.assert_close(
        layer_guesses(packed(whole, torch.float32), READ, WRITTEN)[-1], guess, atol=1e-4, rtol=1e-4
    )


# attention


def test_the_weights_of_every_layer_and_head_are_those_of_the_formula() -> None:
    fused = translating()
    assert fused.config.fused
    expected = attention_weights(written_out(fused), READ, WRITTEN)
    assert {kind: [tuple(weights.shape) for weights in layers] for kind, layers in expected.items()} == {
        "encoder": [(2, 6, 6)],
        "decoder": [(2, 4, 4)] * 2,
        "cross": [(2, 4, 6)] * 2,
    }
    for model in (fused, packed(fused, torch.float32)):
        found = attention_weights(model, READ, WRITTEN)
        for kind, layers in expected.items():
            for ours, theirs in zip(found[kind], layers, strict=True):
                torch.testing.assert_close(ours, theirs, atol=1e-5, rtol=1e-4)
                torch.testing.assert_close(ours.sum(-1), torch.ones(ours.shape[:2]))
    rounded = attention_weights(packed(fused, torch.bfloat16), READ, WRITTEN)
    assert all(weights.dtype == torch.float32 for layers in rounded.values() for weights in layers)


def test_a_bert_that_reads_the_source_is_the_beginning_of_the_encoder() -> None:
    bert = BertConfig(d_model=16, n_heads=4, d_ff=16, n_layers=3, max_length=20)
    model = lively(replace(MODEL, bert=bert), 20, 23)
    assert [len(weights) for weights in attention_weights(model, READ, WRITTEN)["encoder"]] == [4, 4, 4, 2]
    assert attentions(model)["encoder"][-1] is model.encoder[0].self_attention


def test_rows_and_columns_stand_for_tokens() -> None:
    found = AttentionMap(["古い", "寺", EOS], ["old", "temple", EOS], {})
    assert found.rows("encoder") == found.columns("encoder") == found.columns("cross") == found.src_tokens
    assert found.rows("decoder") == found.rows("cross") == found.tgt_tokens
    assert found.columns("decoder") == [BOS, "old", "temple"]


def test_entropy_is_the_sum_of_its_formula() -> None:
    weights = torch.tensor([[0.5, 0.25, 0.25, 0.0], [0.9, 0.1, 0.0, 0.0]])
    expected = [-sum(w * math.log(w) for w in row if w) for row in weights.tolist()]
    assert attention_entropy(weights).item() == pytest.approx(sum(expected) / 2)
    uniform = torch.ones(5, 5).tril() / torch.arange(1, 6)[:, None]
    assert largest_entropy("decoder", 5, 5) == pytest.approx(attention_entropy(uniform).item())


FROM = [[5, 9, 7, 20], [8], [6, 6, 30, 12, 9, 4, 11], [13, 10, 5], []]
TO = [[7, 8, 4], [22, 9, 30, 4, 5], [5, 6], [19], [4]]


@pytest.mark.parametrize("seeds", [[1], [1, 2]], ids=["one", "ensemble"])
@pytest.mark.parametrize("budget", [12, 8192])
def test_a_target_token_is_linked_to_what_the_last_layer_looks_at_most(
    budget: int, seeds: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forced, "_TOKENS_PER_BATCH", budget)
    models = [translating(seed=seed) for seed in seeds]
    found, weights = align(models, FROM, TO), mean_cross_attention(models, FROM, TO)
    for source, target, links, ours in zip(FROM, TO, found, weights, strict=True):
        last = [attention_weights(written_out(model), source, target)["cross"][-1].mean(0) for model in models]
        mean = torch.stack(last).mean(0)[:-1]
        torch.testing.assert_close(ours, mean, atol=1e-5, rtol=1e-4)
        assert links == [(place, t) for t, place in enumerate(mean[:, :-1].argmax(-1).tolist() if source else [])]
    assert len({source for links in found for source, _ in links}) > 2
    assert align(models, [], []) == []


class Pieces(WordTokenizer):
    """A vocabulary that is given, ▁ and all."""

    def save(self, path: Path) -> None:
        raise NotImplementedError


SOURCE = Pieces(["▁", "▁古い", "寺", "が", "▁old", "er", ".", "\u3000"], lowercase=False)
TARGET = Pieces(["▁the", "▁old", "er", "▁temple", "s", ".", "<x"], lowercase=False)


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        # pieces of a word are one, its links are there once, the full stop belongs to the word before it
        (
            "▁古い 寺 が | ▁the ▁old er ▁temple s . | 0-0 0-1 0-2 1-3 2-4 1-5",
            "古い 寺 が | the older temples. | 0-0 0-1 1-2 2-2",
        ),
        # spaces part the source's words where its script has them
        ("▁old er . | ▁old | 2-0", "older. | old | 0-0"),
        # a lone ▁ before a script without spaces is no word, and places are counted without it
        ("▁ 寺 が | ▁the ▁temple | 0-0 1-1 2-0", "寺 が | the temple | 1-0 0-1"),
        ("寺 | | ", "寺 |  | "),
    ],
)
def test_tokens_are_joined_to_words(tokens: str, words: str) -> None:
    source, target, links = (part.split() for part in tokens.split("|"))
    pair = TokenizerPair(SOURCE, TARGET)
    src, tgt = ([id_of_each(side)[token] for token in part] for side, part in zip(pair, (source, target), strict=True))
    places = [(int(link[0]), int(link[2])) for link in links]
    found = join_words((src, source), (tgt, target), places, [*map(WholeWords, pair)])
    joined = (" ".join(found.source), " ".join(found.target), " ".join(f"{i}-{j}" for i, j in found.links))
    assert " | ".join(joined) == words
