"""What translations are scored against, and all that is found of a system on it."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from utils.dataset.parallel_text import decoded_lines
from utils.evaluation.analysis import analyse
from utils.evaluation.comparison import System
from utils.evaluation.evaluation import Evaluation, Metric


class ReferenceText(NamedTuple):
    """References, and what is known of them."""

    name: str
    tgt_lang: str
    tokenize: str  # sacreBLEU's name of the tokenizer
    sources: Sequence[str]  # may be empty
    references: Sequence[str]
    training_text: Path | None  # of the target language

    def evaluation(self, system: System, metrics: list[Metric]) -> Evaluation:
        """Scores of a system that are known, and where it is good."""
        analysis = analyse(
            self.sources,
            system.translations,
            self.references,
            self.tokenize,
            training_text=_lines(self.training_text) if self.training_text else None,
        )
        return Evaluation(system.name, self.name, self.tgt_lang, len(self.references), metrics, analysis)


def _lines(path: Path) -> Iterator[str]:
    """The lines of a large file, one after the other."""
    with path.open("rb") as file:
        yield from decoded_lines(file, str(path))
