"""A network run by CTranslate2 (utils/export/to_ctranslate2.py): ids in, hypotheses or log-probabilities out."""

from collections.abc import Callable, Hashable, Iterable, Sequence
from pathlib import Path
from typing import NamedTuple, NoReturn, TypeVar

import ctranslate2
import torch

from const.token import BOS, EOS, PAD, UNK
from utils.device import Precision
from utils.search.hypothesis import Bounds, Hypothesis, SearchConfig
from utils.text.pair import TokenizerPair
from utils.text.tokenizer import every_token

_COMPUTE_TYPE: dict[Precision | None, str] = {
    None: "default",
    "auto": "default",
    "fp32": "float32",
    "bf16": "bfloat16",
    "fp16": "float16",
}
_NEVER_SAID = [[token] for token in (PAD, UNK, BOS)]
_PATIENCE = 2  # finished translations before its beam search stops, per beam slot: with 1 it often stops too soon
_TOKENS_PER_BATCH = 4096  # positions scored at a time

KeyT = TypeVar("KeyT", bound=Hashable)


class _Ask(NamedTuple):
    """One sentence to translate."""

    source: Sequence[int]
    prefix: Sequence[int]
    bounds: Bounds


class _Said(NamedTuple):
    """A translation by CTranslate2, prefix included; it has not ended with </s> if it reached the length limit."""

    ids: list[int]
    log_prob: float
    has_ended: bool

    @property
    def n_steps(self) -> int:
        """Number of generated tokens, </s> included."""
        return len(self.ids) + self.has_ended


class CTranslate2Model:
    """The network of an exported folder.

    CTranslate2 redistributes the probability of ruled-out tokens (<unk>, and </s> before the shortest length) among
    the rest, whereas our search drops it. The scores of its hypotheses are therefore a little higher than ours.

    Args:
        folder: folder written by `to_ctranslate2`.
        tokenizers: the tokenizers the network was trained with.
        device: device to compute on.
        precision: precision of matrix products; None and auto: that of the exported weights, or the nearest that the
            device supports.

    Raises:
        ValueError: CTranslate2 cannot read the folder, or does not support the precision on this device.
    """

    def __init__(
        self, folder: Path, tokenizers: TokenizerPair, device: torch.device, precision: Precision | None = None
    ) -> None:
        try:
            self._translator = ctranslate2.Translator(
                str(folder),
                device=device.type,
                device_index=device.index or 0,
                compute_type=_COMPUTE_TYPE[precision],
                intra_threads=torch.get_num_threads(),
            )
        except RuntimeError as error:
            remedy = "give --device cpu" if device.type == "cuda" else "export the run again"
            raise ValueError(f"CTranslate2 cannot load {folder} ({error}): {remedy}") from error
        except ValueError as error:
            raise ValueError(f"precision={precision}: {error}: give fp32, or leave it out") from error
        self._src, self._tgt = (every_token(tokenizer) for tokenizer in tokenizers)
        self._ids = {token: i for i, token in enumerate(self._tgt)}

    def start(self, _src: object) -> NoReturn:
        """Refuse single steps: CTranslate2 does the whole search itself.

        Raises:
            ValueError: always.
        """
        raise ValueError("CTranslate2 searches by itself and offers no single steps: use the run and our own search")

    def step(self, _tokens: object, _state: object) -> NoReturn:
        """Refuse single steps, like `start`."""
        self.start(None)

    def search(
        self,
        sources: Sequence[Sequence[int]],
        bounds: Sequence[Bounds],
        config: SearchConfig,
        prefixes: Sequence[Sequence[int]] | None = None,
    ) -> list[list[Hypothesis]]:
        """Translate a batch like `beam_search`.

        Its beam search stops by another rule than ours, after enough finished translations, which are then ranked by
        our penalty.

        Args:
            sources: source ids, without </s>.
            bounds: length bounds of each translation.
            config: beam size, penalty, and n-grams that must not repeat.
            prefixes: ids that each translation starts with; a prefix longer than the bounds extends them.

        Returns:
            For each source, in order, at most `beam_size` hypotheses, best first.
        """
        asks = []
        for i, (source, bound) in enumerate(zip(sources, bounds, strict=True)):
            prefix = prefixes[i] if prefixes is not None else []
            asks.append(_Ask(source, prefix, bound._replace(most=max(bound.most, len(prefix) + 1))))
        found: dict[int, list[_Said]] = {}
        for least, rows in _grouped(range(len(asks)), lambda i: asks[i].bounds.least):
            widest = Bounds(least, max(asks[i].bounds.most for i in rows))
            found |= self._translate(rows, asks, widest, config)
        # It has one length limit per batch: what exceeds its own limit is translated again, grouped by equal bounds.
        beyond = [i for i, ask in enumerate(asks) if any(said.n_steps > ask.bounds.most for said in found[i])]
        for own, rows in _grouped(beyond, lambda i: asks[i].bounds):
            found |= self._translate(rows, asks, own, config)
        return self._hypotheses(asks, [found[i] for i in range(len(asks))], config)

    def _translate(
        self, rows: Sequence[int], asks: Sequence[_Ask], bounds: Bounds, config: SearchConfig
    ) -> dict[int, list[_Said]]:
        """Translate some rows of a batch under the same bounds."""
        n_candidates = _PATIENCE * config.beam_size if config.beam_size > 1 else 1
        results = self._translator.translate_batch(
            [[self._src[i] for i in asks[row].source] for row in rows],
            [[self._tgt[i] for i in asks[row].prefix] for row in rows],
            beam_size=config.beam_size,
            num_hypotheses=n_candidates,
            patience=_PATIENCE,
            length_penalty=config.length_penalty,
            no_repeat_ngram_size=config.no_repeat_ngram,
            min_decoding_length=bounds.least,
            max_decoding_length=bounds.most,
            max_input_length=0,
            suppress_sequences=_NEVER_SAID,
            return_end_token=True,
            return_scores=True,
        )
        return {
            row: [
                self._said(tokens, score * len(tokens) ** config.length_penalty)
                for tokens, score in zip(result.hypotheses, result.scores, strict=True)
            ]
            for row, result in zip(rows, results, strict=True)
        }

    def _said(self, tokens: Sequence[str], log_prob: float) -> _Said:
        ended = tokens[-1] == EOS
        return _Said([self._ids[token] for token in (tokens[:-1] if ended else tokens)], log_prob, ended)

    def _hypotheses(
        self, asks: Sequence[_Ask], found: Sequence[Sequence[_Said]], config: SearchConfig
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses with our length penalty, ordered by it.

        A translation that reached the limit gets </s> in place of its last token and is scored again; so is one with a
        prefix, whose probability CTranslate2 leaves out.
        """
        kept = [_finished(candidates, ask.bounds.most - 1) for ask, candidates in zip(asks, found, strict=True)]
        unsure = [
            (row, place)
            for row, candidates in enumerate(kept)
            for place, said in enumerate(candidates)
            if asks[row].prefix or not said.has_ended
        ]
        scored = self.log_probs(
            [asks[row].source for row, _ in unsure], [kept[row][place].ids for row, place in unsure]
        )
        for (row, place), log_probs in zip(unsure, scored, strict=True):
            kept[row][place] = kept[row][place]._replace(log_prob=sum(log_probs))
        return [
            sorted(
                (Hypothesis(said.ids, said.log_prob / config.penalty(len(said.ids) + 1)) for said in candidates),
                key=lambda hypothesis: -hypothesis.score,
            )[: config.beam_size]
            for candidates in kept
        ]

    def log_probs(self, sources: Sequence[Sequence[int]], targets: Sequence[Sequence[int]]) -> list[list[float]]:
        """Return the log-probability of each token of given translations, the final </s> included.

        Args:
            sources: source ids, without </s>.
            targets: target ids, without <s> and </s>.
        """
        found = self._translator.score_batch(
            [[self._src[i] for i in source] for source in sources],
            [[self._tgt[i] for i in target] for target in targets],
            max_batch_size=_TOKENS_PER_BATCH,
            batch_type="tokens",
            max_input_length=0,
        )
        return [scored.log_probs for scored in found]


def _finished(candidates: Sequence[_Said], longest: int) -> list[_Said]:
    """Cut candidates at the limit and drop duplicates, preferring those that ended by themselves."""
    found: dict[tuple[int, ...], _Said] = {}
    for said in sorted(candidates, key=lambda said: not said.has_ended):
        found.setdefault(tuple(said.ids[:longest]), said._replace(ids=said.ids[:longest]))
    return list(found.values())


def _grouped(rows: Iterable[int], key: Callable[[int], KeyT]) -> list[tuple[KeyT, list[int]]]:
    """Group rows by key, in order of each key's first row."""
    groups: dict[KeyT, list[int]] = {}
    for row in rows:
        groups.setdefault(key(row), []).append(row)
    return list(groups.items())
