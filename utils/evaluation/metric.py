"""BLEU (Papineni et al. 2002), chrF2, chrF2++ (Popović 2016, 2017), TER (Snover et al. 2006), by sacreBLEU (Post 2018).

Every number and signature is the one that sacreBLEU's command line prints for the same files, intervals included.
"""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from sacrebleu.metrics import base
from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.ter import TER
from sacrebleu.significance import PairedTest, Result
from tqdm import tqdm

from config.data import primary_language
from utils.text.language import SCRIPTS

if TYPE_CHECKING:
    from utils.dataset.corpus import Corpus

# for languages that 13a cannot split into words; where nothing here can, every character counts as one
OWN_TOKENIZER = dict.fromkeys(SCRIPTS, "char") | {"ja": "ja-mecab", "zh": "zh", "ko": "ko-mecab"}
_NEED_SPACES = ("13a", "intl", "none")
_NEED_NOTHING = ("char", "spm", "flores101", "flores200", "spBLEU-1K")
TOKENIZERS = dict.fromkeys((*_NEED_SPACES, *OWN_TOKENIZER.values(), *_NEED_NOTHING))

Test = Literal["bootstrap", "randomization"]

_KANJI_TO_CHARACTERS = ("ja", "zh")
_MAX_DRAWN = 50_000_000  # lines x resamples: sacreBLEU keeps all of them in memory, 80 bytes each
_MIN_SAMPLES = 100


@dataclass(frozen=True)
class Metric:
    """The score of a whole text, 0 to 100 (TER may exceed it, and is better when lower), with its 95 % interval."""

    name: str
    score: float
    low: float
    high: float
    signature: str  # sacreBLEU's, with all that is needed to reproduce the score


@dataclass(frozen=True)
class Comparison:
    """The significance test of a system against a baseline on the same text."""

    system: str
    baseline: str
    metric: str
    difference: float  # score of the system minus score of the baseline
    p_value: float
    method: str
    signature: str


class System(NamedTuple):
    """A system's name and translations."""

    name: str
    translations: Sequence[str]


def bleu_tokenizer(tgt_lang: str, pre_tokenized: bool) -> str:
    """Return sacreBLEU's name of the tokenizer; 13a never fits Japanese, whose words are not separated by spaces."""
    if pre_tokenized:
        return "none"
    return OWN_TOKENIZER.get(primary_language(tgt_lang), "13a")


def fitting_tokenizer(tgt_lang: str, pre_tokenized: bool, wanted: str | None = None, force: bool = False) -> str:
    """Return the tokenizer for BLEU: the wanted one if it fits the language, or the language's own."""
    own = bleu_tokenizer(tgt_lang, pre_tokenized)
    fitting = [own] if pre_tokenized else [own, *_NEED_NOTHING, *(_NEED_SPACES if own in _NEED_SPACES else ())]
    if wanted is None or force or wanted in fitting:
        return wanted or own
    words = "words that are split already" if pre_tokenized else f"{tgt_lang} into words"
    raise ValueError(
        f"--tokenize {wanted} cannot split {words}, and BLEU would be meaningless: give --tokenize {own}, or "
        "--pre-tokenized if spaces separate the words, or --force"
    )


def corpus_metrics(corpus: "Corpus") -> dict[str, base.Metric]:
    """Return the metrics of `build_metrics` for the target side of a corpus."""
    data = corpus.data
    return build_metrics(data.tgt_lang, bleu_tokenizer(data.tgt_lang, data.is_tokenized))


def build_metrics(tgt_lang: str, tokenize: str) -> dict[str, base.Metric]:
    """Return BLEU, chrF2, chrF2++ and TER for a target language, under these names.

    TER counts words between spaces, so that a sentence of Japanese or Chinese would be a single word. Theirs is
    counted as by `sacrebleu --ter-normalized --ter-asian-support`: every kanji is a word, and so is anything between
    kanji and punctuation. With the tokenizer `none`, spaces separate the words for TER as well.

    chrF2++ is chrF2 with words and pairs of words, which sacreBLEU only finds between spaces: Japanese and Chinese have
    none. A language that nothing here can split into words has neither chrF2++ nor TER.
    """
    split = primary_language(tgt_lang) in _KANJI_TO_CHARACTERS and tokenize != "none"
    try:
        # force: the caller warns of tokenized text, once instead of in three log lines
        bleu = BLEU(tokenize=tokenize, force=True)
    except RuntimeError as error:  # a package that the tokenizer needs is not installed
        remedy = "poetry install --with korean" if tokenize == OWN_TOKENIZER["ko"] else str(error)
        raise ValueError(f"BLEU needs a package to split {tgt_lang} with {tokenize}: {remedy}") from error
    except OSError as error:
        raise ValueError(
            f"BLEU's {tokenize} is downloaded at its first use, and that failed ({error}): go online once, or copy "
            "~/.sacrebleu from a machine that has it, or give another --tokenize"
        ) from error
    has_words = tokenize == "none" or OWN_TOKENIZER.get(primary_language(tgt_lang)) != "char"
    plus = {"chrF2++": CHRF(word_order=2)} if has_words and not split else {}
    ter = {"TER": TER(normalized=split, asian_support=split)} if has_words else {}
    return {"BLEU": bleu, "chrF2": CHRF(), **plus, **ter}


def measure(
    translations: Sequence[str], references: Sequence[str], metrics: Mapping[str, base.Metric], n_bootstrap: int = 0
) -> list[Metric]:
    """Score translations against one reference each by every metric; sacreBLEU gets both unchanged.

    Args:
        n_bootstrap: resamples of the sentences for the intervals (Koehn 2004); 0: each interval is the score itself.
    """
    if len(translations) != len(references) or not references:
        raise ValueError(f"{len(translations)} translations against {len(references)} references: give one for each")
    refuse_samples(n_bootstrap, len(references), "--bootstrap")
    scored = []
    disable = None if n_bootstrap else True  # without resamples it is quick
    for name, metric in tqdm(metrics.items(), desc="scoring", unit="metric", disable=disable, leave=False):
        try:
            score = metric.corpus_score(list(translations), [list(references)], n_bootstrap)
        except TypeError as error:  # sacreBLEU fails on resamples without any words
            raise ValueError(
                f"{len(references)} lines, some of them empty, are too few for an interval of {name}: "
                "give --bootstrap 0"
            ) from error
        mean, half = (score._mean, score._ci) if n_bootstrap else (score.score, 0.0)
        scored.append(with_interval(name, score.score, mean, half, str(metric.get_signature())))
    return scored


def with_interval(name: str, score: float, mean: float, half: float, signature: str) -> Metric:
    """Return a metric with sacreBLEU's interval: mean of the resamples ± half the width, clipped to the scale.

    A score is therefore not always in the middle of its interval. NumPy numbers become floats, for JSON.
    """
    top = float("inf") if name == "TER" else 100.0
    return Metric(name, float(score), max(0.0, float(mean - half)), min(top, float(mean + half)), signature)


def refuse_samples(n_samples: int, n_lines: int, option: str) -> None:
    """Refuse a number of samples that is too small for a reliable interval, or exceeds memory."""
    if n_samples < 0 or 0 < n_samples < _MIN_SAMPLES:
        raise ValueError(f"{option} {n_samples}: give {_MIN_SAMPLES} or more (sacreBLEU's default: 1000), or 0")
    if n_samples * n_lines > _MAX_DRAWN:
        raise ValueError(
            f"{option} {n_samples} of {n_lines:,} lines needs {n_samples * n_lines * 80 / 2**30:.0f} GB of memory: "
            f"give {option} {max(_MIN_SAMPLES, _MAX_DRAWN // n_lines)}, or 0"
        )


@contextmanager
def sampling_seed(seed: int | None) -> Iterator[None]:
    """Within the block, sacreBLEU uses this seed; None: SACREBLEU_SEED, or its default 12345."""
    name = "SACREBLEU_SEED"
    before = os.environ.get(name)
    wanted = before if seed is None else str(seed)
    # sacreBLEU's paired tests treat 0 as no seed
    if wanted is not None and wanted.lower() != "none" and not (wanted.isdecimal() and int(wanted) > 0):
        raise ValueError(f"seed {wanted}: give 1 or more (--seed, or the environment's {name})")
    given = {} if wanted is None else {name: wanted}
    try:
        os.environ.update(given)
        yield
    finally:
        os.environ.pop(name, None)
        os.environ.update({} if before is None else {name: before})


# Paired bootstrap (Koehn 2004) resamples the sentences; approximate randomisation (Riezler & Maxwell 2005) swaps the
# translations of each sentence by two systems with probability 1/2.
# test -> sacreBLEU's name of it, its default number of samples, and the method as a report names it
_TESTS: Mapping[Test, tuple[str, int, str]] = {
    "bootstrap": ("bs", 1000, "paired bootstrap, {:,} resamples"),
    "randomization": ("ar", 10_000, "approximate randomization, {:,} trials"),
}


def compare(
    systems: Sequence[System],
    references: Sequence[str],
    metrics: Mapping[str, base.Metric],
    test: Test,
    n_samples: int | None = None,
    n_bootstrap: int = 0,
) -> tuple[list[list[Metric]], list[Comparison]]:
    """Return the metrics of each system, and the test of each of the others against the first by each metric.

    Args:
        n_samples: resamples or trials of the test; None: sacreBLEU's default.
        n_bootstrap: resamples for the intervals of the scores; a bootstrap test uses its own instead.
    """
    code, default, method = _TESTS[test]
    if n_samples == 0:
        raise ValueError("--samples 0: a test needs samples; leave the option out for sacreBLEU's default")
    n_samples = n_samples or default
    method = method.format(n_samples)
    refuse_samples(n_samples, len(references), "--samples")
    refuse_samples(n_bootstrap, len(references), "--bootstrap")
    # sacreBLEU's confidence samples are for randomisation only: with a bootstrap they would falsify the signature
    n_confidence = n_bootstrap if n_bootstrap and test == "randomization" else -1
    baseline = systems[0]
    scores: list[list[Metric]] = [[] for _ in systems]
    comparisons = []
    for name, metric in tqdm(metrics.items(), desc="comparing", unit="metric", disable=None, leave=False):
        paired = PairedTest(list(systems), {name: metric}, [list(references)], code, n_samples, n_confidence)
        signatures, results = paired()
        ((key, signature),) = signatures.items()
        own = [result for result in results[key] if isinstance(result, Result)]
        for system, metrics_of_system, result in zip(systems, scores, own, strict=True):
            mean, half = (result.score, 0.0) if result.mean is None else (result.mean, result.ci or 0.0)
            metrics_of_system.append(with_interval(name, result.score, mean, half, str(signature)))
            if system is not baseline:
                difference, p_value = result.score - own[0].score, float(result.p_value or 0.0)
                if difference == 0:  # chance gives at least that, but sacreBLEU reports 1/(n+1)
                    p_value = 1.0
                elif test == "randomization":
                    # of the 2^k ways to swap k lines that differ, two give the observed difference: it is no surer
                    n_different = sum(map(str.__ne__, system.translations, baseline.translations))
                    p_value = max(p_value, 2.0 ** (1 - n_different))
                names = system.name, baseline.name, name
                comparisons.append(Comparison(*names, difference, p_value, method, str(signature)))
    return scores, comparisons


# The protocol of github.com/nymwa/kftt_jaen_example: KFTT's `tok` references, lower case, Moses' multi-bleu.perl.

PUBLISHED_TEST = 1160, 26_734  # lines and words of tok/kyoto-test.en, of the published 22.29 (fairseq, 20 epochs)

_SPACE_TO_PYTHON_ALONE = re.compile(r"[^\S \t\n\r\f\v]")


def multi_bleu(translations: Sequence[str], references: Sequence[str]) -> str:
    """Return what `multi-bleu.perl` prints for lower-cased text: BLEU-4 of words between spaces, unsmoothed."""
    bleu = BLEU(tokenize="none", lowercase=True, smooth_method="none", force=True)
    # Perl reads bytes: to it, an ideographic or a no-break space is part of a word
    ours, theirs = ([_SPACE_TO_PYTHON_ALONE.sub("␣", line) for line in side] for side in (translations, references))
    score = bleu.corpus_score(ours, [theirs])
    precisions = "/".join(f"{precision:.1f}" for precision in score.precisions)
    return (
        f"BLEU = {score.score:.2f}, {precisions} (BP={score.bp:.3f}, ratio={score.ratio:.3f}, "
        f"hyp_len={score.sys_len}, ref_len={score.ref_len})"
    )


def moses_words(lines: Sequence[str]) -> list[str]:
    """Tokenize plain English like KFTT's `tok`: with Moses' tokenizer.perl, without escaping.

    Of the 1,160 lines of the test set's `orig` text, 1,140 become those of `tok`; the rest differ in kanji, which only
    newer versions of the script separate.
    """
    from sacremoses import MosesTokenizer  # slow to import, and not needed by other verbs

    tokenize = MosesTokenizer(lang="en").tokenize
    return [tokenize(line, escape=False, return_str=True) for line in lines]
