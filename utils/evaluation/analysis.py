"""Where translations are good or bad: by length, by word frequency, by repetition, and by sentence."""

import re
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from tqdm import tqdm

from utils.dataset.text import decoded_lines
from utils.evaluation.metric import Analysis, Evaluation, Group, Metric, SentenceScore, System, bleu_tokenizer
from utils.text.language import unspaced_language

# F1 of words that are frequent, rare or absent in the training text (as in compare-mt, Neubig et al. 2019).
#
# F1 = 2 · matched / (words of the references + words of the translations), over the words of one frequency group.

_RAREST = (0, 1, 2, 5, 10, 100, 1000)  # fewest occurrences of each group
_LABELS = ("never seen", "1 time", "2-4 times", "5-9 times", "10-99 times", "100-999 times", "1000+ times")


def word_counts(text: Iterable[str], cut: Callable[[str], list[str]]) -> Counter[str]:
    """Count the words of a text, which is read once, line by line, with a progress bar on standard error."""
    counts: Counter[str] = Counter()
    bar = tqdm(text, desc="words of the training text", unit=" lines", unit_scale=True, disable=None, leave=False)
    for line in bar:
        counts.update(cut(line))
    return counts


def f1_by_frequency(
    translations: Sequence[Sequence[str]], references: Sequence[Sequence[str]], counts: Counter[str]
) -> list[Group]:
    """Return F1 of words, in percent, by their frequency in the training text.

    A word of a translation matches at most as often as its reference has it. The count of a group is the number of its
    words in the references; groups without any are left out.

    Args:
        translations: words of each translation.
        references: words of each reference.
        counts: word counts of the training text.
    """
    wanted, written, matched = ([0] * len(_RAREST) for _ in range(3))
    for translation, reference in zip(translations, references, strict=True):
        ours, theirs = Counter(translation), Counter(reference)
        for words, total in ((theirs, wanted), (ours, written), (ours & theirs, matched)):
            for word, times in words.items():
                total[bisect_right(_RAREST, counts[word]) - 1] += times
    return [
        Group(label, reference_words, 200 * both / (reference_words + own_words))
        for label, reference_words, own_words, both in zip(_LABELS, wanted, written, matched, strict=True)
        if reference_words
    ]


# Analysis by length: BLEU of short and of long sentences, and translations that leave out most of a sentence.

_LONGEST = (5, 10, 20, 30, 40, 60)  # longest sentence, in tokens, of each group but the last
_SHARE, _LACKING = 0.5, 5


def bleu_by_length(
    lengths: Sequence[int], unit: str, translations: Sequence[str], references: Sequence[str], tokenizer: str
) -> list[Group]:
    """Return corpus BLEU of the sentences of 0-5, 6-10, ... tokens; groups without sentences are left out.

    If no sentence of a group is long enough for a 4-gram, only shorter n-grams count (sacreBLEU's effective order):
    otherwise even a perfect group would score 0. This does not affect other groups.

    Args:
        lengths: number of tokens of each sentence.
        unit: name of the tokens, for the labels.
        translations: one for each length.
        references: one for each length.
        tokenizer: sacreBLEU's name of the target tokenizer.
    """
    bleu = BLEU(tokenize=tokenizer, effective_order=True, force=True)
    groups = []
    for place, label in enumerate(_labels()):
        lines = [line for line, length in enumerate(lengths) if bisect_left(_LONGEST, length) == place]
        if lines:
            found = bleu.corpus_score([translations[i] for i in lines], [[references[i] for i in lines]])
            groups.append(Group(f"{label} {unit}", len(lines), found.score))
    return groups


def under_translated(n_words: int, n_reference: int) -> bool:
    """Return whether a translation is empty, or has fewer than half of its reference's words and at least five fewer.

    Lengths show when models stop too early (Stahlberg & Byrne 2019, "On NMT search errors and model errors: cat got
    your tongue?"); the two limits are ours. At least five words must be missing because good translations of a short
    sentence may differ by half: "Sure." for "Yes, of course." is not an error.
    """
    return n_words < n_reference and (
        n_words == 0 or (n_words < _SHARE * n_reference and n_reference - n_words >= _LACKING)
    )


def _labels() -> list[str]:
    shortest = [0, *(longest + 1 for longest in _LONGEST)]
    return [*(f"{low}-{high}" for low, high in zip(shortest, _LONGEST, strict=False)), f"{shortest[-1]}+"]


# Detection of repetitions in a translation that its reference does not have.

_ORDER, _MORE_OFTEN = 4, 2
_IN_A_ROW = 3
_LETTERS_IN_A_ROW = 5
_SAME_LETTER = re.compile(r"([^\W\d_])\1*")


def repeats(words: Sequence[str], reference: Sequence[str]) -> bool:
    """Return whether a translation repeats itself, in one of three ways.

    1. Its most frequent 4-gram occurs at least two times more than the reference's most frequent one: the top n-gram
       count by which Raunak et al. 2021 ("The curious case of hallucinations in neural machine translation") detect
       oscillating translations, with their n = 4 and t = 2. They count in the source; the reference is in the same
       language and tokenized alike. A reference without 4-grams counts as having each once.
    2. One to three words occur three times or more in a row, and more often than any do in the reference ("of the of
       the of the"). In sentences this short, 4-grams do not show it. Punctuation is skipped: "..." is not an error.
    3. A letter occurs five times or more in a row within a word, and more often than any does in the reference
       ("JNRRRRRR"): a loop of sub-words that are single letters.
    """
    if _top_count(words) - max(1, _top_count(reference)) >= _MORE_OFTEN:
        return True
    if (letters := _letters_in_a_row(words)) >= _LETTERS_IN_A_ROW and letters > _letters_in_a_row(reference):
        return True
    spoken, spoken_reference = _without_punctuation(words), _without_punctuation(reference)
    return any(
        (times := _times_in_a_row(spoken, n)) >= _IN_A_ROW and times > _times_in_a_row(spoken_reference, n)
        for n in range(1, _ORDER)
    )


def _top_count(words: Sequence[str]) -> int:
    """Return how often the most frequent 4-gram occurs."""
    return max(Counter(zip(*(words[i:] for i in range(_ORDER)), strict=False)).values(), default=0)


def _times_in_a_row(words: Sequence[str], n: int) -> int:
    """Return the most times that the same n words occur in a row."""
    most = streak = 0
    for before, now in zip(words, words[n:], strict=False):
        streak = streak + 1 if before == now else 0
        most = max(most, streak)
    return 1 + most // n


def _letters_in_a_row(words: Sequence[str]) -> int:
    """Return the most times that the same letter occurs in a row."""
    return max((len(run[0]) for word in words for run in _SAME_LETTER.finditer(word)), default=0)


def _without_punctuation(words: Sequence[str]) -> list[str]:
    return [word for word in words if any(map(str.isalnum, word))]


# Analysis of where translations are good or bad: by length, by word frequency, and by sentence.


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


# The reference text that translations are scored against.


@dataclass(frozen=True)
class ReferenceText:
    """References, with the facts that scoring needs."""

    name: str
    tgt_lang: str
    tokenize: str  # sacreBLEU's name of the tokenizer
    sources: Sequence[str]  # may be empty
    references: Sequence[str]
    training_text: Path | None  # in the target language

    @cached_property
    def training_words(self) -> Counter[str] | None:
        """Word counts of the training text, read once for all systems."""
        if self.training_text is None:
            return None
        with self.training_text.open("rb") as file:
            return word_counts(decoded_lines(file, str(self.training_text)), word_cutter(self.tokenize))

    def evaluation(self, system: System, metrics: list[Metric]) -> Evaluation:
        """Analyse a system, and return the analysis together with its given scores."""
        analysis = analyse(
            self.sources,
            system.translations,
            self.references,
            self.tokenize,
            training_words=self.training_words,
        )
        return Evaluation(system.name, self.name, self.tgt_lang, len(self.references), metrics, analysis)
