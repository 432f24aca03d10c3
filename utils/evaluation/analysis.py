"""Analysis of where translations are good or bad: by length, by word frequency, and by sentence."""

from collections import Counter
from collections.abc import Callable, Sequence

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF

from utils.evaluation.evaluation import Analysis, SentenceScore
from utils.evaluation.length import bleu_by_length, under_translated
from utils.evaluation.metric import bleu_tokenizer
from utils.evaluation.repetition import repeats
from utils.evaluation.word_f1 import f1_by_frequency
from utils.text.script import unspaced_language


def analyse(
    sources: Sequence[str],
    translations: Sequence[str],
    references: Sequence[str],
    tokenizer: str,
    *,
    training_words: Counter[str] | None = None,
    n_shown: int = 10,
) -> Analysis:
    """Analyse translations; words are the tokens of BLEU's tokenizer.

    Args:
        sources: one for each reference, or none at all: then lengths are those of the references.
        translations: one for each reference.
        references: one per sentence.
        tokenizer: sacreBLEU's name of the tokenizer; none: spaces separate the words in all of these texts.
        training_words: word counts of the target side of the training set.
        n_shown: number of best and of worst sentences to list.

    Raises:
        ValueError: the numbers of sentences differ, or there are none.
    """
    if len(translations) != len(references) or len(sources) not in (0, len(references)) or not references:
        raise ValueError(
            f"{len(sources)} sources and {len(translations)} translations against {len(references)} references: "
            "give one for each (or no sources at all)"
        )
    cut = word_cutter(tokenizer)
    ours, theirs = ([cut(line) for line in side] for side in (translations, references))
    if sources:
        # the source language is not given, but only one without spaces must be recognised
        cut_source = word_cutter(bleu_tokenizer(unspaced_language(sources), tokenizer == "none"))
        lengths, unit = [len(cut_source(line)) for line in sources], "source tokens"
    else:
        lengths, unit = [len(words) for words in theirs], "reference tokens"
    best, worst = _best_and_worst(sources or [""] * len(references), translations, references, n_shown)
    pairs = list(zip(ours, theirs, strict=True))
    return Analysis(
        bleu_by_length=bleu_by_length(lengths, unit, translations, references, tokenizer),
        f1_by_frequency=[] if training_words is None else f1_by_frequency(ours, theirs, training_words),
        repetition_rate=100 * sum(repeats(*pair) for pair in pairs) / len(pairs),
        under_translation_rate=100 * sum(under_translated(len(a), len(b)) for a, b in pairs) / len(pairs),
        length_ratio=sum(map(len, ours)) / max(1, sum(map(len, theirs))),
        best=best,
        worst=worst,
    )


def word_cutter(tokenizer: str) -> Callable[[str], list[str]]:
    """Return a function that splits a line into words as BLEU does."""
    tokenize = BLEU(tokenize=tokenizer).tokenizer
    return lambda line: tokenize(line.rstrip()).split()


def _best_and_worst(
    sources: Sequence[str], translations: Sequence[str], references: Sequence[str], n_shown: int
) -> tuple[list[SentenceScore], list[SentenceScore]]:
    """Return the sentences with the highest and with the lowest chrF2; ties are in order of the text."""
    chrf = CHRF()
    scored = [
        SentenceScore(line, source, translation, reference, chrf.sentence_score(translation, [reference]).score)
        for line, (source, translation, reference) in enumerate(
            zip(sources, translations, references, strict=True), start=1
        )
    ]
    best = sorted(scored, key=lambda sentence: -sentence.chrf)  # sorting keeps the order of equals
    worst = sorted(scored, key=lambda sentence: sentence.chrf)
    return best[:n_shown], worst[:n_shown]
