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

OWN_TOKENIZER = {"ja": "ja-mecab", "zh": "zh", "ko": "ko-mecab"}  # of languages whose words 13a does not find
NEED_SPACES = ("13a", "intl", "none")
NEED_NOTHING = ("char", "spm", "flores101", "flores200", "spBLEU-1K")
TOKENIZERS = (*NEED_SPACES, *OWN_TOKENIZER.values(), *NEED_NOTHING)

_KANJI_TO_CHARACTERS = ("ja", "zh")
_MOST_DRAWN = 50_000_000  # lines x resamples: sacreBLEU holds all of them at once, 80 bytes each
_FEWEST_RESAMPLES = 100


def bleu_tokenizer(tgt_lang: str, pre_tokenized: bool) -> str:
    """sacreBLEU's name of the tokenizer: words of Japanese are not found by spaces, so 13a never fits it."""
    if pre_tokenized:
        return "none"
    return OWN_TOKENIZER.get(primary_language(tgt_lang), "13a")


def fitting_tokenizer(tgt_lang: str, pre_tokenized: bool, wanted: str | None = None, force: bool = False) -> str:
    """The tokenizer for BLEU: the one that is wanted, if it finds the words of the language, or the language's own.

    Raises:
        ValueError: the wanted one does not, and nobody insists.
    """
    own = bleu_tokenizer(tgt_lang, pre_tokenized)
    if wanted is None or force:
        return wanted or own
    if pre_tokenized and wanted != own:
        raise ValueError(f"--tokenize {wanted} would cut words that are cut already: leave out it or --pre_tokenized")
    if wanted == own or wanted in NEED_NOTHING:
        return wanted
    if primary_language(tgt_lang) in OWN_TOKENIZER or wanted not in NEED_SPACES:
        raise ValueError(
            f"--tokenize {wanted} does not find the words of {tgt_lang}, and BLEU would say nothing: give --tokenize "
            f"{own}, or --pre_tokenized where spaces part the words, or --force"
        )
    return wanted


def corpus_metrics(corpus: Corpus) -> dict[str, base.Metric]:
    """The metrics of `build_metrics`, as the target text of a corpus is counted."""
    return build_metrics(corpus.tgt_lang, bleu_tokenizer(corpus.tgt_lang, corpus.pre_tokenized))


def build_metrics(tgt_lang: str, tokenize: str) -> dict[str, base.Metric]:
    """BLEU, chrF2 and TER for a target language, by these names.

    TER counts words between spaces. Japanese and Chinese have none: each sentence would be one word, and TER the share
    of sentences that differ at all. Tercom's way out is taken there (`sacrebleu --ter-normalized
    --ter-asian-support`; norm:yes and asian:yes in the signature): every kanji is a word, and so is what stands
    between kanji and punctuation.

    Args:
        tgt_lang: language code.
        tokenize: sacreBLEU's name of BLEU's tokenizer; `none` says that spaces part the words, also for TER.

    Raises:
        ValueError: what the tokenizer needs is not installed.
    """
    split = primary_language(tgt_lang) in _KANJI_TO_CHARACTERS and tokenize != "none"
    try:
        # forced: whether a text looks tokenized is for the caller to say, once and not in three lines of a log
        bleu = BLEU(tokenize=tokenize, force=True)
    except RuntimeError as error:
        raise ValueError(f"BLEU cannot cut {tgt_lang} with {tokenize}: {error}") from error
    return {"BLEU": bleu, "chrF2": CHRF(), "TER": TER(normalized=split, asian_support=split)}


def measure(
    translations: Sequence[str],
    references: Sequence[str],
    metrics: dict[str, base.Metric],
    n_bootstrap: int = 0,
    on_progress: Callable[[int], object] = lambda _: None,
) -> list[Metric]:
    """Score translations against one reference each by every metric; neither is changed before sacreBLEU sees it.

    Args:
        translations: one a line.
        references: one for each.
        metrics: as `build_metrics` gives them.
        n_bootstrap: resamples for the intervals; without any, an interval is the score itself.
        on_progress: is told of each metric that is done.

    Raises:
        ValueError: there is not one reference for each translation, or none at all; more is asked for than fits into
            memory, or an interval of lines that are nearly all empty.
    """
    if len(translations) != len(references) or not references:
        raise ValueError(
            f"{len(translations)} translations against {len(references)} references: one for each is needed"
        )
    refuse_samples(n_bootstrap, len(references), "--bootstrap")
    found = []
    for name, metric in metrics.items():
        try:
            score = metric.corpus_score(list(translations), [list(references)], n_bootstrap)
        except TypeError as error:  # sacreBLEU cannot take the mean of resamples that have no words at all
            raise ValueError(
                f"{len(references)} lines with empty ones among them are too few for an interval of {name}: "
                "give --bootstrap 0"
            ) from error
        mean, half = (score._mean, score._ci) if n_bootstrap else (score.score, 0.0)
        found.append(with_interval(name, score.score, mean, half, str(metric.get_signature())))
        on_progress(1)
    return found


def with_interval(name: str, score: float, mean: float, half: float, signature: str) -> Metric:
    """A metric with sacreBLEU's interval, mean of the resamples ± half the width; no end leaves the scale.

    Which is why a score need not be in the middle of its interval. Resampling leaves NumPy's numbers: JSON has none.
    """
    top = float("inf") if name == "TER" else 100.0
    return Metric(name, float(score), max(0.0, float(mean - half)), min(top, float(mean + half)), signature)


def refuse_samples(n_samples: int, n_lines: int, option: str) -> None:
    """Refuse numbers of samples that say nothing or cannot be held.

    Raises:
        ValueError: few enough for the interval to be chance, or so many that memory ends.
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
    """Have sacreBLEU draw with this seed inside the block; None leaves it at SACREBLEU_SEED, or its own 12345.

    Raises:
        ValueError: a seed that sacreBLEU does not take; its paired tests read 0 as none at all.
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
