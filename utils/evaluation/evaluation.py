"""What an evaluation finds, as plain values: `dataclasses.asdict` of each goes into JSON as it is."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """A score of a whole text, and how sure it is.

    Args:
        name: BLEU, chrF2 or TER.
        score: 0 to 100; of TER less is better, and it may exceed 100.
        low: lower end of the 95 % interval, by bootstrap over sentences (Koehn 2004).
        high: its upper end.
        signature: sacreBLEU's, which says all that another must know to get the same number.
    """

    name: str
    score: float
    low: float
    high: float
    signature: str


@dataclass(frozen=True)
class Group:
    """The score of a part of the text, or of a part of its words.

    Args:
        label: which part, such as "11-20 tokens".
        count: how many sentences (or reference words) are in it.
        score: BLEU or F1, 0 to 100.
    """

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
    """Where translations are good and where they are not.

    Args:
        bleu_by_length: BLEU by length of the source.
        f1_by_frequency: F1 of words by how often the training text has them; empty without training text.
        repetition_rate: share of sentences, in percent, that say something again which the reference does not.
        under_translation_rate: share of sentences, in percent, that are much shorter than the reference.
        length_ratio: words of the translation over words of the reference.
        best: sentences with the highest chrF2, best first.
        worst: those with the lowest, worst first.
    """

    bleu_by_length: list[Group]
    f1_by_frequency: list[Group]
    repetition_rate: float
    under_translation_rate: float
    length_ratio: float
    best: list[SentenceScore]
    worst: list[SentenceScore]


@dataclass(frozen=True)
class Evaluation:
    """One system on one text.

    Args:
        system: its name: a run or a file.
        text: the name of what it translated.
        tgt_lang: language code of the target.
        n_sentences: how many.
        metrics: BLEU, chrF2, TER.
        analysis: the details.
    """

    system: str
    text: str
    tgt_lang: str
    n_sentences: int
    metrics: list[Metric]
    analysis: Analysis


@dataclass(frozen=True)
class Comparison:
    """Whether a system differs from a baseline on the same text by more than chance.

    Args:
        system: name of the one.
        baseline: name of the other.
        metric: by which score.
        difference: score of the system minus score of the baseline.
        p_value: how often chance alone gives a difference as large.
        method: paired bootstrap or approximate randomisation, with its number of samples.
        signature: sacreBLEU's.
    """

    system: str
    baseline: str
    metric: str
    difference: float
    p_value: float
    method: str
    signature: str
