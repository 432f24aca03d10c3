"""What a language model beside a translator is worth: its weight is found on dev, its choice is scored on test."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from sacrebleu.metrics import base
from tqdm import tqdm

from utils.above_bars import print_above_bars
from utils.dataset.corpus import Corpus
from utils.dataset.documents import Document, read_documents
from utils.dataset.parallel_text import ParallelText, read_parallel
from utils.evaluation.comparison import System, compare
from utils.evaluation.evaluation import Comparison, Evaluation
from utils.evaluation.reference_text import ReferenceText
from utils.evaluation.rescoring_weight import WeightTrial, best_weight, try_weights
from utils.search.document_rescorer import DocumentRescorer
from utils.search.translator import Translation


class DocumentText(NamedTuple):
    """Pairs of sentences, and the documents that they are of."""

    pairs: ParallelText
    documents: list[Document]

    @classmethod
    def read(cls, corpus: Corpus, split: str, file: Path | None, limit: int | None) -> "DocumentText":
        """The first sentences of a text, this many; without a file of documents all are one.

        Raises:
            ValueError: the documents are of another text.
        """
        pairs = read_parallel(getattr(corpus, split))
        documents = list(read_documents(file)) if file else [Document(split, len(pairs))]
        if (total := sum(document.n_lines for document in documents)) != len(pairs):
            raise ValueError(
                f"--{split}_documents {file} counts {total:,} lines, but the {split} set has {len(pairs):,}: "
                "give the file that belongs to it, or none"
            )
        return cls(pairs[:limit], documents)

    def candidates(self, found: Iterable[Translation]) -> "Candidates":
        """What was found for its sentences, in their order."""
        found = iter(found)
        return Candidates(self.pairs, [list(islice(found, document.n_lines)) for document in self.documents])


class Candidates(NamedTuple):
    """What a beam has found for each sentence of each document."""

    pairs: ParallelText
    documents: list[list[Translation]]

    @property
    def unchanged(self) -> list[str]:
        """What the translator finds best."""
        return [translation.text for document in self.documents for translation in document]

    def chosen(self, rescorer: DocumentRescorer, on_progress: Callable[[int], object] = lambda _: None) -> list[str]:
        """What is best with a language model."""
        return [rescored.translation.text for rescored in rescorer.rescore_documents(self.documents, on_progress)]


def find_weights(
    rescorers: Sequence[DocumentRescorer], on_dev: Candidates, weights: Sequence[float], bleu: base.Metric
) -> list[WeightTrial]:
    """Give each rescorer the weight with which it chooses best, and print what each weight gives."""
    print("\n  memory  weight   BLEU  length ratio  changed", flush=True)
    trials = []
    for rescorer in rescorers:
        found = _try_weights(rescorer, on_dev, weights, bleu)
        rescorer.weight = best_weight(found)
        trials += found
    return trials


def _try_weights(
    rescorer: DocumentRescorer, on_dev: Candidates, weights: Sequence[float], bleu: base.Metric
) -> list[WeightTrial]:
    with tqdm(
        total=len(on_dev.pairs) * sum(weight > 0 for weight in weights),
        desc="rescoring",
        unit="sentence",
        disable=None,
        leave=False,
    ) as bar:

        def choose_with(weight: float) -> list[str]:
            rescorer.weight = weight
            return on_dev.chosen(rescorer, bar.update)

        def show(trial: WeightTrial) -> None:
            scores = f"{trial.bleu:>5.2f}  {trial.length_ratio:>12.3f}  {trial.n_changed:>7}"
            print_above_bars(f"{trial.memory_length:>8}  {trial.weight:>6g}  {scores}")

        memory_length = rescorer.scorer.memory_length
        return try_weights(choose_with, on_dev.unchanged, on_dev.pairs.tgt, memory_length, weights, bleu, show)


def score_choices(
    rescorers: Mapping[str, DocumentRescorer],
    on_test: Candidates,
    text: ReferenceText,
    metrics: Mapping[str, base.Metric],
    n_samples: int | None,
) -> tuple[list[Evaluation], list[Comparison]]:
    """Score what rescorers choose, each against the translator alone, and the later ones against the first.

    Args:
        rescorers: by the name of what each is.
        on_test: what they choose from.
        text: of the test set.
        metrics: as `build_metrics` gives them.
        n_samples: of the paired bootstrap.
    """
    beam = next(iter(rescorers.values())).search.beam_size
    systems = [System(f"beam {beam}", on_test.unchanged)]
    systems += [System(name, on_test.chosen(rescorer)) for name, rescorer in rescorers.items()]
    scores, comparisons = compare(systems, text.references, metrics, "bootstrap", n_samples)
    comparisons += compare(systems[1:], text.references, metrics, "bootstrap", n_samples)[1]
    return [text.evaluation(system, found) for system, found in zip(systems, scores, strict=True)], comparisons
