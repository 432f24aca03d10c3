"""The reference text that translations are scored against."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from utils.dataset.parallel_text import decoded_lines
from utils.evaluation.analysis import analyse, word_cutter
from utils.evaluation.comparison import System
from utils.evaluation.evaluation import Evaluation, Metric
from utils.evaluation.word_f1 import word_counts


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
