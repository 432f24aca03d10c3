"""Where translations are good or bad: by length, by word frequency, by repetition, and by sentence."""

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sacrebleu.metrics.bleu import BLEU
from sacrebleu.metrics.chrf import CHRF
from sacrebleu.metrics.helpers import extract_word_ngrams
from tqdm import tqdm

from utils.dataset.text import decoded_lines
from utils.evaluation.metric import Metric, System, bleu_tokenizer
from utils.text.language import unspaced_language

# groups of sentences by tokens, and of words by occurrences: the smallest number in each, and its label
_LENGTHS = {0: "0-5", 6: "6-10", 11: "11-20", 21: "21-30", 31: "31-40", 41: "41-60", 61: "61+"}
_FREQUENCIES = {0: "never seen", 1: "1 time", 2: "2-4 times", 5: "5-9 times", 10: "10-99 times"}
_FREQUENCIES |= {100: "100-999 times", 1000: "1000+ times"}

_N_SHOWN = 10  # best and worst sentences
_SAME_LETTER = re.compile(r"([^\W\d_])\1*")


@dataclass(frozen=True)
class PartScore:
    """The score (BLEU or F1, 0 to 100) of a part of the text's sentences or words."""

    label: str
    count: int
    score: float


@dataclass(frozen=True)
class SentenceScore:
    """One sentence, with its line number (from 1) and its chrF2."""

    line: int
    source: str
    translation: str
    reference: str
    chrf: float


@dataclass(frozen=True)
class Analysis:
    """An analysis of where translations are good or bad."""

    bleu_by_length: list[PartScore]  # length of the source
    f1_by_frequency: list[PartScore]  # frequency in the training text; empty without one
    repetition_rate: float  # sentences, in percent, that repeat something that the reference does not repeat
    under_translation_rate: float  # sentences, in percent, that are much shorter than the reference
    length_ratio: float  # words of the translation over words of the reference
    best: list[SentenceScore]
    worst: list[SentenceScore]


@dataclass(frozen=True)
class Evaluation:
    """One system on one text."""

    system: str
    text: str
    tgt_lang: str
    n_sentences: int
    metrics: list[Metric]
    analysis: Analysis


@dataclass(frozen=True)
class NgramMatches:
    """How often an n-gram of the references is in two systems' translations of the same sentences."""

    ngram: str
    baseline: int
    system: int
    references: int


@dataclass(frozen=True)
class Contrast:
    """Where a system differs most from a baseline; sentences are the baseline's and the system's."""

    system: str
    baseline: str
    better: list[tuple[SentenceScore, SentenceScore]]
    worse: list[tuple[SentenceScore, SentenceScore]]
    gained: list[NgramMatches]  # n-grams that the system has right more often
    lost: list[NgramMatches]


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
    def split(self) -> Callable[[str], list[str]]:
        """What splits a line into words."""
        return word_splitter(self.tokenize)

    @cached_property
    def training_words(self) -> Counter[str] | None:
        """Word counts of the training text, read once for all systems."""
        if self.training_text is None:
            return None
        with self.training_text.open("rb") as file:
            lines = decoded_lines(file, str(self.training_text))
            bar = tqdm(lines, "words of the training text", unit=" lines", unit_scale=True, disable=None, leave=False)
            return Counter(word for line in bar for word in self.split(line))

    def evaluation(self, system: System, metrics: list[Metric]) -> Evaluation:
        """Analyse a system, and return the analysis together with its given scores."""
        analysis = self.analyse(system.translations)
        return Evaluation(system.name, self.name, self.tgt_lang, len(self.references), metrics, analysis)

    def analyse(self, translations: Sequence[str]) -> Analysis:
        """Analyse translations; without sources, lengths are those of the references."""
        ours, theirs = ([self.split(line) for line in side] for side in (translations, self.references))
        pairs, scored = list(zip(ours, theirs, strict=True)), self.sentence_scores(translations)
        frequencies = self.training_words
        return Analysis(
            bleu_by_length=self.bleu_by_length(translations),
            f1_by_frequency=[] if frequencies is None else f1_by_frequency(ours, theirs, frequencies),
            repetition_rate=100 * sum(repeats(*pair) for pair in pairs) / len(pairs),
            under_translation_rate=100 * sum(under_translated(len(a), len(b)) for a, b in pairs) / len(pairs),
            length_ratio=sum(map(len, ours)) / max(1, sum(map(len, theirs))),
            best=sorted(scored, key=lambda sentence: -sentence.chrf)[:_N_SHOWN],  # sorting keeps the order of equals
            worst=sorted(scored, key=lambda sentence: sentence.chrf)[:_N_SHOWN],
        )

    def sentence_scores(self, translations: Sequence[str]) -> list[SentenceScore]:
        """Return each sentence with its chrF2."""
        chrf, sources = CHRF(), self.sources or [""] * len(self.references)
        return [
            SentenceScore(line, source, translation, reference, chrf.sentence_score(translation, [reference]).score)
            for line, (source, translation, reference) in enumerate(
                zip(sources, translations, self.references, strict=True), start=1
            )
        ]

    def bleu_by_length(self, translations: Sequence[str]) -> list[PartScore]:
        """Return corpus BLEU of the sentences of 0-5, 6-10, ... tokens; groups without sentences are left out.

        If no sentence of a group is long enough for a 4-gram, only shorter n-grams count (sacreBLEU's effective order):
        otherwise even a perfect group would score 0. This does not affect other groups.
        """
        lines, unit, split = self.references, "reference tokens", self.split
        if self.sources:
            # the source language is not given, but only one without spaces must be recognised
            lines, unit = self.sources, "source tokens"
            split = word_splitter(bleu_tokenizer(unspaced_language(lines), self.tokenize == "none"))
        by_group: dict[int, list[int]] = {group: [] for group in _LENGTHS}
        for i, line in enumerate(lines):
            by_group[_group(_LENGTHS, len(split(line)))].append(i)
        bleu = BLEU(tokenize=self.tokenize, effective_order=True, force=True)
        return [
            PartScore(
                f"{_LENGTHS[group]} {unit}",
                len(rows),
                bleu.corpus_score([translations[i] for i in rows], [[self.references[i] for i in rows]]).score,
            )
            for group, rows in by_group.items()
            if rows
        ]

    def contrast(self, baseline: System, system: System) -> Contrast:
        """Compare a system with a baseline, sentence by sentence and n-gram by n-gram."""
        scored = map(self.sentence_scores, (baseline.translations, system.translations))
        pairs = sorted(zip(*scored, strict=True), key=lambda pair: pair[0].chrf - pair[1].chrf)
        ngrams = sorted(self.ngram_matches(baseline, system), key=share_of_system)
        return Contrast(
            system.name,
            baseline.name,
            better=[pair for pair in pairs[:_N_SHOWN] if pair[0].chrf < pair[1].chrf],
            worse=[pair for pair in pairs[: -_N_SHOWN - 1 : -1] if pair[0].chrf > pair[1].chrf],
            gained=[ngram for ngram in ngrams[: -_N_SHOWN - 1 : -1] if ngram.system > ngram.baseline],
            lost=[ngram for ngram in ngrams[:_N_SHOWN] if ngram.system < ngram.baseline],
        )

    def ngram_matches(self, baseline: System, system: System) -> list[NgramMatches]:
        """Count the right n-grams of one to four words: of a sentence at most as often as its reference has them."""
        totals = Counter[str](), Counter[str](), Counter[str]()
        for lines in zip(baseline.translations, system.translations, self.references, strict=True):
            for n in range(1, 5):
                ngrams = [extract_word_ngrams(self.split(line), n) for line in lines]
                for total, of_line in zip(totals, ngrams, strict=True):
                    total.update(of_line & ngrams[-1])
        return [NgramMatches(ngram, *(total[ngram] for total in totals)) for ngram in totals[-1]]


def share_of_system(ngram: NgramMatches) -> tuple[float, int]:
    """Return the share of the system in the right n-grams, (s + 1) / (s + b + 2), and s - b for n-grams of equal share.

    It is compare-mt's order (Neubig et al. 2019): 9 times against 2 tells more of a system than 2 against 0.
    """
    return (ngram.system + 1) / (ngram.system + ngram.baseline + 2), ngram.system - ngram.baseline


def word_splitter(tokenizer: str) -> Callable[[str], list[str]]:
    """Return a function that splits a line into words as BLEU does."""
    tokenize = BLEU(tokenize=tokenizer).tokenizer
    return lambda line: tokenize(line.rstrip()).split()


def f1_by_frequency(
    translations: Sequence[Sequence[str]], references: Sequence[Sequence[str]], counts: Counter[str]
) -> list[PartScore]:
    """Return F1 of words, in percent, by their frequency in the training text (as in compare-mt, Neubig et al. 2019).

    F1 = 2 · matched / (words of the references + words of the translations). A word of a translation matches at most as
    often as its reference has it. The count of a group is the number of its words in the references; groups without any
    are left out.
    """
    wanted, written, matched = Counter[int](), Counter[int](), Counter[int]()
    for translation, reference in zip(translations, references, strict=True):
        ours, theirs = Counter(translation), Counter(reference)
        for words, total in ((theirs, wanted), (ours, written), (ours & theirs, matched)):
            for word, times in words.items():
                total[_group(_FREQUENCIES, counts[word])] += times
    return [
        PartScore(label, wanted[group], 200 * matched[group] / (wanted[group] + written[group]))
        for group, label in _FREQUENCIES.items()
        if wanted[group]
    ]


def _group(groups: Iterable[int], number: int) -> int:
    """Return the smallest number of the group that a number belongs to."""
    return max(smallest for smallest in groups if smallest <= number)


def under_translated(n_words: int, n_reference: int) -> bool:
    """Return whether a translation is empty, or has fewer than half of its reference's words and at least five fewer.

    Models that stop too early are found by lengths (Stahlberg & Byrne 2019). Good translations of a short sentence may
    differ by half: "Sure." for "Yes, of course." is not an error.
    """
    return n_words == 0 < n_reference or (n_words < 0.5 * n_reference and n_reference - n_words >= 5)


def repeats(words: Sequence[str], reference: Sequence[str]) -> bool:
    """Return whether a translation repeats itself, in one of three ways.

    1. Its most frequent 4-gram occurs at least two times more than the reference's (or than once): the top n-gram
       count of Raunak et al. 2021 ("The curious case of hallucinations in neural machine translation"), who count in
       the source.
    2. One to three words occur three times or more in a row, and more often than any do in the reference ("of the of
       the of the"), punctuation left out: "..." is not an error.
    3. A letter occurs five times or more in a row within a word, and more often than any does in the reference
       ("JNRRRRRR"): a loop of sub-words that are single letters.
    """
    if _top_count(words) - max(1, _top_count(reference)) >= 2:
        return True
    if (letters := _letters_in_a_row(words)) >= 5 and letters > _letters_in_a_row(reference):
        return True
    spoken, spoken_reference = ([w for w in side if any(map(str.isalnum, w))] for side in (words, reference))
    return any(
        (times := _times_in_a_row(spoken, n)) >= 3 and times > _times_in_a_row(spoken_reference, n) for n in (1, 2, 3)
    )


def _top_count(words: Sequence[str]) -> int:
    """Return how often the most frequent 4-gram occurs."""
    return max(Counter(zip(words, words[1:], words[2:], words[3:], strict=False)).values(), default=0)


def _times_in_a_row(words: Sequence[str], n: int) -> int:
    """Return the most times that the same n words occur in a row."""
    longest = streak = 0
    for before, now in zip(words, words[n:], strict=False):
        streak = streak + 1 if before == now else 0
        longest = max(longest, streak)
    return 1 + longest // n


def _letters_in_a_row(words: Sequence[str]) -> int:
    """Return the most times that the same letter occurs in a row."""
    return max((len(run[0]) for word in words for run in _SAME_LETTER.finditer(word)), default=0)
