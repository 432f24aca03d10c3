"""Translation with what was exported to CTranslate2, which needs no torch: ids in, hypotheses out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from config.reader import read, settings_from_file, without_removed
from config.search import Bounds, Hypothesis, SearchConfig
from config.training import NO_CUDA, Device, InferencePrecision
from const.path import EXPORTED
from const.token import BOS, EOS, PAD, UNK
from utils.command import needing_group
from utils.search.inspection import Inspector
from utils.search.searcher import Ids, Request
from utils.search.translator import Translator
from utils.text.tokenizer import TokenizerPair, every_token, load_tokenizers
from utils.text.words import plain_text

with needing_group("export"):
    import ctranslate2

_COMPUTE_TYPE = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16", "int8": "int8"}
_NEVER_PRODUCED = [[token] for token in (PAD, UNK, BOS)]
_PATIENCE = 2  # finished translations before its beam search stops, per beam slot: with 1 it often stops too soon
_TOKENS_PER_BATCH = 4096  # positions scored at a time


@dataclass(frozen=True)
class TranslatorSettings:
    """What translating needs of a run besides weights and tokenizers."""

    name: str
    src_lang: str
    tgt_lang: str  # decides how sentences are joined
    window: int  # most source tokens at a time, </s> included
    longest: int  # most target tokens, </s> included
    search: SearchConfig

    @classmethod
    def load(cls, folder: Path) -> "TranslatorSettings":
        """Read the settings of an exported translator."""
        return read(cls, without_removed(settings_from_file(folder / EXPORTED)))  # JSON is YAML, too


_Output = list[tuple[Sequence[str], float]]  # tokens, </s> included unless the length limit was reached; and the score


class CTranslate2Search:
    """Searches with the network of an exported folder.

    CTranslate2 redistributes the probability of ruled-out tokens (<unk>, and </s> before the shortest length) among
    the rest, whereas our search drops it. The scores of its hypotheses are therefore a little higher than ours.

    A precision of auto is that of the exported weights, or the nearest that the device supports.
    """

    tokens_per_batch = 8192

    def __init__(
        self, folder: Path, tokenizers: TokenizerPair, device: Device, precision: InferencePrecision = "auto"
    ) -> None:
        has_cuda = device != "cpu" and ctranslate2.get_cuda_device_count() > 0
        if device == "cuda" and not has_cuda:
            raise ValueError(NO_CUDA)
        try:
            self._translator = ctranslate2.Translator(
                str(folder),
                device="cuda" if has_cuda else "cpu",
                compute_type=_COMPUTE_TYPE.get(precision, "default"),
            )
        except RuntimeError as error:
            remedy = "give --device cpu" if has_cuda else "export the run again"
            raise ValueError(f"CTranslate2 cannot load {folder} ({error}): {remedy}") from error
        except ValueError as error:
            raise ValueError(f"precision={precision}: {error}: give fp32, or leave it out") from error
        self._src, self._tgt = (every_token(tokenizer) for tokenizer in tokenizers)
        self._ids = {token: i for i, token in enumerate(self._tgt)}

    def __call__(
        self, requests: Sequence[Request], config: SearchConfig, _n_best: int | None = None
    ) -> list[list[Hypothesis]]:
        """Return at most `beam_size` hypotheses for each request, best first.

        Its beam search stops by another rule than ours, after enough finished translations, which are then ranked by
        our penalty.
        """
        # It has one length limit per call: what exceeds its own limit is translated again.
        bounds = [Bounds(request.bounds.min_length, request.max_length) for request in requests]
        widest = {limit.min_length: limit for limit in sorted(bounds)}
        outputs = self._translate(requests, {row: widest[own.min_length] for row, own in enumerate(bounds)}, config)
        beyond = {
            row: bounds[row]
            for row, of_request in outputs.items()
            if any(len(tokens) > bounds[row].max_length for tokens, _ in of_request)
        }
        outputs |= self._translate(requests, beyond, config)
        return self._hypotheses(requests, outputs, config)

    def _translate(
        self, requests: Sequence[Request], limits: Mapping[int, Bounds], config: SearchConfig
    ) -> dict[int, _Output]:
        """Translate some rows of a batch, those with equal limits together."""
        outputs: dict[int, _Output] = {}
        for bounds in set(limits.values()):
            rows = [row for row, limit in limits.items() if limit == bounds]
            results = self._translator.translate_batch(
                [[self._src[i] for i in requests[row].source] for row in rows],
                [[self._tgt[i] for i in requests[row].prefix] for row in rows],
                beam_size=config.beam_size,
                num_hypotheses=_PATIENCE * config.beam_size if config.beam_size > 1 else 1,
                patience=_PATIENCE,
                length_penalty=config.length_penalty,
                no_repeat_ngram_size=config.no_repeat_ngram,
                min_decoding_length=bounds.min_length,
                max_decoding_length=bounds.max_length,
                max_input_length=0,
                suppress_sequences=_NEVER_PRODUCED,
                return_end_token=True,
                return_scores=True,
            )
            for row, result in zip(rows, results, strict=True):
                outputs[row] = list(zip(result.hypotheses, result.scores, strict=True))
        return outputs

    def _hypotheses(
        self, requests: Sequence[Request], outputs: Mapping[int, _Output], config: SearchConfig
    ) -> list[list[Hypothesis]]:
        """Return the hypotheses with our length penalty, ordered by it.

        A translation that reached the limit gets </s> in place of its last token and is scored again; so is one with a
        prefix, whose probability CTranslate2 leaves out.
        """
        log_probs: dict[tuple[int, tuple[int, ...]], float | None] = {}
        for row, request in enumerate(requests):
            ended_first = sorted(outputs[row], key=lambda output: output[0][-1] != EOS)
            for tokens, score in ended_first:
                ids = tuple(self._ids[token] for token in tokens if token != EOS)[: request.max_length - 1]
                is_sure = tokens[-1] == EOS and not request.prefix
                log_probs.setdefault((row, ids), score * len(tokens) ** config.length_penalty if is_sure else None)
        unsure = [key for key, log_prob in log_probs.items() if log_prob is None]
        scored = self.log_probs([requests[row].source for row, _ in unsure], [ids for _, ids in unsure])
        hypotheses: list[list[Hypothesis]] = [[] for _ in requests]
        for (row, ids), log_prob in (log_probs | dict(zip(unsure, map(sum, scored), strict=True))).items():
            hypotheses[row].append(Hypothesis([*ids], (log_prob or 0.0) / config.penalty(len(ids) + 1)))
        by_score = (sorted(of_row, key=lambda hypothesis: -hypothesis.score) for of_row in hypotheses)
        return [best_first[: config.beam_size] for best_first in by_score]

    def log_probs(self, sources: Ids, targets: Ids) -> list[list[float]]:
        """Return the log-probability of each token of given translations, the final </s> included."""
        scored = self._translator.score_batch(
            [[self._src[i] for i in source] for source in sources],
            [[self._tgt[i] for i in target] for target in targets],
            max_batch_size=_TOKENS_PER_BATCH,
            batch_type="tokens",
            max_input_length=0,
        )
        return [result.log_probs for result in scored]


def load_exported(
    folder: Path,
    device: Device,
    search: SearchConfig | None = None,
    precision: InferencePrecision = "auto",
    plain: bool = False,
    tag: str | None = None,
) -> Inspector:
    """Read an exported translator; search settings are its own if not given; `plain` and `tag` as of `load_run`."""
    settings, tokenizers = TranslatorSettings.load(folder), load_tokenizers(folder, tag)
    tokenizers = plain_text(tokenizers, folder) if plain else tokenizers
    searcher = CTranslate2Search(folder, tokenizers, device, precision)
    search = search or settings.search
    translator = Translator(
        searcher,
        tokenizers,
        settings.tgt_lang,
        search,
        settings.window,
        settings.longest,
        src_lang=settings.src_lang,
    )
    return Inspector(translator, score=searcher.log_probs)
