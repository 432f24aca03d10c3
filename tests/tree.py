"""A model whose every probability is known: what to say next is drawn anew for each source and each beginning."""

import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache

import torch
from torch import Tensor

from config.search import Bounds, Hypothesis, SearchConfig
from const.token import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from utils.search.glossary import Wanted
from utils.search.searcher import Request

Ids = tuple[int, ...]


def real(row: Tensor) -> Ids:
    """A source without its padding."""
    return tuple(i for i in row.tolist() if i != PAD_ID)


def up_to(*max_lengths: int) -> list[Bounds]:
    """Bounds of sentences that may be so long, and as short as they like."""
    return [Bounds(0, max_length) for max_length in max_lengths]


def asked(
    src: Tensor,
    bounds: Sequence[Bounds],
    prefixes: Sequence[Sequence[int]] = (),
    numbers: Sequence[int] = (),
    wanted: Sequence[Wanted | None] = (),
) -> list[Request]:
    """A request for each row of sources, which have </s> and padding behind it."""
    n = len(src)
    rows = zip(src, bounds, prefixes or [()] * n, numbers or range(n), wanted or [None] * n, strict=True)
    return [Request(real(row)[:-1], *rest) for row, *rest in rows]  # type: ignore[arg-type]  # mypy mixes their types


def repeats(ids: Ids, n: int) -> bool:
    """Whether some n tokens stand in it twice."""
    grams = [ids[i : i + n] for i in range(len(ids) - n + 1)]
    return n > 0 and len(set(grams)) < len(grams)


class TreeState:
    def __init__(self, sources: tuple[Ids, ...], said: tuple[Ids, ...]) -> None:
        self.sources = sources
        self.said = said

    def select(self, rows: Tensor) -> "TreeState":
        owners = rows // (len(self.said) // len(self.sources))
        assert (owners == owners[:, :1]).all(), "rows of another sentence"
        assert owners[:, 0].tolist() == sorted(set(owners[:, 0].tolist())), "sentences out of order"
        sources = tuple(self.sources[i] for i in owners[:, 0].tolist())
        return TreeState(sources, tuple(self.said[i] for i in rows.flatten().tolist()))


@cache
def draw_logits(vocab: int, seed: int, source: Ids, said: Ids) -> tuple[float, ...]:
    draw = random.Random(repr((seed, source, said)))
    return tuple(2 * draw.gauss() for _ in range(vocab))


class Tree:
    """Searchable, and its own oracle; `eos` is added to the logit of </s>, `forbidden` to <pad>, <unk> and <s>."""

    def __init__(self, vocab: int, seed: int = 0, eos: float = 0.0, forbidden: float = 0.0) -> None:
        self.vocab, self.seed, self.eos, self.forbidden = vocab, seed, eos, forbidden
        self.starts: list[int] = []  # sentences of each call
        self.steps: list[list[int]] = []  # tokens of each call

    def logits(self, source: Ids, said: Ids) -> list[float]:
        logits = list(draw_logits(self.vocab, self.seed, source, said))
        logits[EOS_ID] += self.eos
        for token in (PAD_ID, UNK_ID, BOS_ID):
            logits[token] += self.forbidden
        return logits

    def start(self, src: Tensor) -> TreeState:
        self.starts.append(len(src))
        return TreeState(tuple(real(row) for row in src), ((),) * len(src))

    def step(self, tokens: Tensor, state: TreeState) -> tuple[Tensor, TreeState]:
        self.steps.append(tokens.tolist())
        said = tuple((*ids, token) for ids, token in zip(state.said, tokens.tolist(), strict=True))
        width = len(said) // len(state.sources)
        logits = [self.logits(state.sources[row // width], ids) for row, ids in enumerate(said)]
        return torch.tensor(logits), TreeState(state.sources, said)

    # what search ought to find

    def log_probs(self, source: Ids, said: Ids) -> dict[int, float]:
        """What may be said next, with its log-probability among all tokens, forbidden ones too."""
        logits = self.logits(source, (BOS_ID, *said))
        log_z = math.log(sum(math.exp(x) for x in logits))
        return {token: logits[token] - log_z for token in range(self.vocab) if token not in (PAD_ID, UNK_ID, BOS_ID)}

    def allowed(
        self, source: Ids, said: Ids, config: SearchConfig, bounds: Bounds, prefix: Ids = ()
    ) -> dict[int, float]:
        """Those that also keep the rules: the last word is </s>, and so is that of one who has nothing else to say."""
        log_probs, t = self.log_probs(source, said), len(said)
        end = {EOS_ID: log_probs[EOS_ID]}
        if t < len(prefix):
            return {prefix[t]: log_probs[prefix[t]]}
        if t + 1 >= bounds.max_length:
            return end
        n = config.no_repeat_ngram
        before = {said[i : i + n] for i in range(t - n + 1)}
        going_on = {
            token: log_prob
            for token, log_prob in log_probs.items()
            if (t >= bounds.min_length if token == EOS_ID else (*said, token)[t + 1 - n :] not in before or not n)
        }
        return going_on or end

    def all_translations(self, source: Ids, config: SearchConfig, bounds: Bounds, prefix: Ids = ()) -> list[Hypothesis]:
        """Every sequence that keeps the rules, best first."""

        def walk(said: Ids, total: float) -> Iterator[Hypothesis]:
            for token, log_prob in self.allowed(source, said, config, bounds, prefix).items():
                if token == EOS_ID:
                    yield Hypothesis(list(said), (total + log_prob) / config.penalty(len(said) + 1))
                else:
                    yield from walk((*said, token), total + log_prob)

        return sorted(walk((), 0.0), key=lambda hypothesis: -hypothesis.score)

    def patient_beam(self, source: Ids, config: SearchConfig, bounds: Bounds, prefix: Ids = ()) -> list[Hypothesis]:
        """Beam search of one sentence that never stops before nothing is left to say."""
        beams: list[tuple[Ids, float]] = [((), 0.0)]
        finished = []
        while beams:
            candidates = [
                ((*ids, token), total + log_prob)
                for ids, total in beams
                for token, log_prob in self.allowed(source, ids, config, bounds, prefix).items()
            ]
            beams = []
            for ids, total in sorted(candidates, key=lambda candidate: -candidate[1]):
                if ids[-1] == EOS_ID:
                    finished.append(Hypothesis(list(ids[:-1]), total / config.penalty(len(ids))))
                else:
                    beams.append((ids, total))
                if len(beams) == config.beam_size:
                    break
        return sorted(finished, key=lambda hypothesis: -hypothesis.score)[: config.beam_size]

    def greedy(self, source: Ids, config: SearchConfig, bounds: Bounds, prefix: Ids = ()) -> Hypothesis:
        """The likeliest token, again and again."""
        said: list[int] = []
        total = 0.0
        while EOS_ID not in said:
            log_probs = self.allowed(source, tuple(said), config, bounds, prefix)
            said.append(max(log_probs, key=log_probs.__getitem__))
            total += log_probs[said[-1]]
        return Hypothesis(said[:-1], total / config.penalty(len(said)))


def assert_drawn_by(counts: Counter[Ids], probs: dict[Ids, float]) -> None:
    """Pearson's chi-square: what is seen of each outcome is what its probability lets expect."""
    n, total = sum(counts.values()), sum(probs.values())
    assert counts.keys() <= probs.keys()
    expected = {outcome: n * p / total for outcome, p in probs.items()}
    cells = [(counts[outcome], count) for outcome, count in expected.items() if count >= 5]
    # of the rare ones too few are seen: taken together
    cells.append((n - sum(seen for seen, _ in cells), n - sum(count for _, count in cells) + 1e-9))
    chi_square = sum((seen - count) ** 2 / count for seen, count in cells)
    freedom = len(cells) - 1
    # Wilson & Hilferty 1931: the cube root of a chi-square over its degrees of freedom is nearly normal
    z = ((chi_square / freedom) ** (1 / 3) - 1 + 2 / (9 * freedom)) / math.sqrt(2 / (9 * freedom))
    assert z < 3, f"chi-square {chi_square:.1f} with {freedom} degrees of freedom"
