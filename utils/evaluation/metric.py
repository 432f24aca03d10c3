"""BLEU (Papineni et al. 2002), chrF2 (Popović 2016) and TER (Snover et al. 2006), all three by sacreBLEU (Post 2018).

Every number and signature is the one that sacreBLEU's command line prints for the same files, intervals included.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from sacrebleu.metrics import base
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER

from utils.dataset.corpus import Corpus
from utils.evaluation.evaluation import Metric
from utils.text.script import primary_language

OWN_TOKENIZER = {"ja": "ja-mecab", "zh": "zh", "ko": "ko-mecab"}  # for languages that 13a cannot split into words
NEED_SPACES = ("13a", "intl", "none")
NEED_NOTHING = ("char", "spm", "flores101", "flores200", "spBLEU-1K")
TOKENIZERS = (*NEED_SPACES, *OWN_TOKENIZER.values(), *NEED_NOTHING)

_KANJI_TO_CHARACTERS = ("ja", "zh")
_MOST_DRAWN = 50_000_000  # lines x resamples: sacreBLEU keeps all of them in memory, 80 bytes each
_FEWEST_RESAMPLES = 100


def bleu_tokenizer(tgt_lang: str, pre_tokenized: bool) -> str:
    """Return sacreBLEU's name of the tokenizer; 13a never fits Japanese, whose words are not separated by spaces."""
    if pre_tokenized:
        return "none"
    return OWN_TOKENIZER.get(primary_language(tgt_lang), "13a")


def fitting_tokenizer(tgt_lang: str, pre_tokenized: bool, wanted: str | None = None, force: bool = False) -> str:
    """Return the tokenizer for BLEU: the wanted one if it fits the language, or the language's own.

    Raises:
        ValueError: the wanted one does not fit, and `force` is not set.
    """
    own = bleu_tokenizer(tgt_lang, pre_tokenized)
    if wanted is None or force:
        return wanted or own
    if pre_tokenized and wanted != own:
        raise ValueError(
            f"--tokenize {wanted} would split words that are split already: leave out it or --pre_tokenized"
        )
    if wanted == own or wanted in NEED_NOTHING:
        return wanted
    if primary_language(tgt_lang) in OWN_TOKENIZER or wanted not in NEED_SPACES:
        raise ValueError(
            f"--tokenize {wanted} cannot split {tgt_lang} into words, and BLEU would be meaningless: give --tokenize "
            f"{own}, or --pre_tokenized if spaces separate the words, or --force"
        )
    return wanted


def corpus_metrics(corpus: Corpus) -> dict[str, base.Metric]:
    """Return the metrics of `build_metrics` for the target side of a corpus."""
    return build_metrics(corpus.tgt_lang, bleu_tokenizer(corpus.tgt_lang, corpus.pre_tokenized))


def build_metrics(tgt_lang: str, tokenize: str) -> dict[str, base.Metric]:
    """Return BLEU, chrF2 and TER for a target language, under these names.

    TER counts words between spaces. Japanese and Chinese have no spaces: each sentence would be one word, and TER the
    share of sentences that differ at all. Tercom's solution is used for them (`sacrebleu --ter-normalized
    --ter-asian-support`; norm:yes and asian:yes in the signature): every kanji is a word, and so is anything between
    kanji and punctuation.

    Args:
        tgt_lang: language code.
        tokenize: sacreBLEU's name of BLEU's tokenizer; `none`: spaces separate the words, for TER as well.

    Raises:
        ValueError: a dependency of the tokenizer is not installed.
    """
    split = primary_language(tgt_lang) in _KANJI_TO_CHARACTERS and tokenize != "none"
    try:
        # force: the caller warns of tokenized text, once instead of in three log lines
        bleu = BLEU(tokenize=tokenize, force=True)
    except RuntimeError as error:
        raise ValueError(f"BLEU cannot tokenize {tgt_lang} with {tokenize}: {error}") from error
    return {"BLEU": bleu, "chrF2": CHRF(), "TER": TER(normalized=split, asian_support=split)}


def measure(
    translations: Sequence[str],
    references: Sequence[str],
    metrics: dict[str, base.Metric],
    n_bootstrap: int = 0,
    on_progress: Callable[[int], object] = lambda _: None,
) -> list[Metric]:
    """Score translations against one reference each by every metric; sacreBLEU gets both unchanged.

    Args:
        translations: one per line.
        references: one for each translation.
        metrics: as returned by `build_metrics`.
        n_bootstrap: resamples for the intervals; 0: each interval is the score itself.
        on_progress: called with 1 for each finished metric.

    Raises:
        ValueError: there is not one reference for each translation, or there are none; there are too few resamples or
            more than fit into memory; or nearly all lines are empty, so that there is no interval.
    """
    if len(translations) != len(references) or not references:
        raise ValueError(f"{len(translations)} translations against {len(references)} references: give one for each")
    refuse_samples(n_bootstrap, len(references), "--bootstrap")
    found = []
    for name, metric in metrics.items():
        try:
            score = metric.corpus_score(list(translations), [list(references)], n_bootstrap)
        except TypeError as error:  # sacreBLEU fails on resamples without any words
            raise ValueError(
                f"{len(references)} lines, some of them empty, are too few for an interval of {name}: "
                "give --bootstrap 0"
            ) from error
        mean, half = (score._mean, score._ci) if n_bootstrap else (score.score, 0.0)
        found.append(with_interval(name, score.score, mean, half, str(metric.get_signature())))
        on_progress(1)
    return found


def with_interval(name: str, score: float, mean: float, half: float, signature: str) -> Metric:
    """Return a metric with sacreBLEU's interval: mean of the resamples ± half the width, clipped to the scale.

    A score is therefore not always in the middle of its interval. NumPy numbers become floats, for JSON.
    """
    top = float("inf") if name == "TER" else 100.0
    return Metric(name, float(score), max(0.0, float(mean - half)), min(top, float(mean + half)), signature)


def refuse_samples(n_samples: int, n_lines: int, option: str) -> None:
    """Refuse a number of samples that is meaningless or exceeds memory.

    Raises:
        ValueError: there are too few for a reliable interval, or more than fit into memory.
    """
    if n_samples < 0 or 0 < n_samples < _FEWEST_RESAMPLES:
        raise ValueError(f"{option} {n_samples}: give {_FEWEST_RESAMPLES} or more (sacreBLEU's default: 1000), or 0")
    if n_samples * n_lines > _MOST_DRAWN:
        raise ValueError(
            f"{option} {n_samples} of {n_lines:,} lines needs {n_samples * n_lines * 80 / 2**30:.0f} GB of memory: "
            f"give {option} {max(_FEWEST_RESAMPLES, _MOST_DRAWN // n_lines)}, or 0"
        )


@contextmanager
def sampling_seed(seed: int | None) -> Iterator[None]:
    """Within the block, sacreBLEU uses this seed; None: SACREBLEU_SEED, or its default 12345.

    Raises:
        ValueError: sacreBLEU does not accept the seed; its paired tests treat 0 as no seed.
    """
    name = "SACREBLEU_SEED"
    before = os.environ.get(name)
    wanted = before if seed is None else str(seed)
    if wanted is not None and wanted.lower() != "none" and not (wanted.isdecimal() and int(wanted) > 0):
        raise ValueError(f"seed {wanted}: give 1 or more (--seed, or the environment's {name})")
    try:
        if wanted is not None:
            os.environ[name] = wanted
        yield
    finally:
        if before is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = before
