"""Results of an evaluation as plain values: `dataclasses.asdict` of each is ready for JSON."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Metric:
    """The score of a whole text, with its confidence interval.

    Args:
        name: BLEU, chrF2 or TER.
        score: 0 to 100; for TER, lower is better, and it may exceed 100.
        low: lower end of the 95 % interval, by bootstrap over sentences (Koehn 2004).
        high: upper end of the interval.
        signature: sacreBLEU's signature, with all that is needed to reproduce the score.
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
        label: name of the part, such as "11-20 tokens".
        count: number of its sentences (or reference words).
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
    """An analysis of where translations are good or bad.

    Args:
        bleu_by_length: BLEU by length of the source.
        f1_by_frequency: F1 of words by their frequency in the training set; empty without training set.
        repetition_rate: share of sentences, in percent, that repeat something that the reference does not repeat.
        under_translation_rate: share of sentences, in percent, that are much shorter than the reference.
        length_ratio: words of the translation over words of the reference.
        best: sentences with the highest chrF2, best first.
        worst: sentences with the lowest chrF2, worst first.
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
        system: name of the system: a run or a file.
        text: name of the translated text.
        tgt_lang: language code of the target.
        n_sentences: number of sentences.
        metrics: BLEU, chrF2, TER.
        analysis: detailed analysis.
    """

    system: str
    text: str
    tgt_lang: str
    n_sentences: int
    metrics: list[Metric]
    analysis: Analysis


@dataclass(frozen=True)
class Comparison:
    """The significance test of a system against a baseline on the same text.

    Args:
        system: name of the system.
        baseline: name of the baseline.
        metric: name of the metric.
        difference: score of the system minus score of the baseline.
        p_value: probability that chance alone gives a difference this large.
        method: paired bootstrap or approximate randomisation, with its number of samples.
        signature: sacreBLEU's signature.
    """

    system: str
    baseline: str
    metric: str
    difference: float
    p_value: float
    method: str
    signature: str
