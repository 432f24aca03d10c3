"""The gain from reranking by a language model: its weight is tuned on dev, its choices are scored on test."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
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
    """Sentence pairs, and the documents they belong to."""

    pairs: ParallelText
    documents: list[Document]

    @classmethod
    def read(cls, corpus: Corpus, split: str, file: Path | None, limit: int | None) -> "DocumentText":
        """Read the first `limit` sentences of a text; without a file of documents, they are a single document.

        Raises:
            ValueError: the documents do not match the text.
        """
        pairs = read_parallel(getattr(corpus, split))
        documents = list(read_documents(file)) if file else [Document(split, len(pairs))]
        if (total := sum(document.n_lines for document in documents)) != len(pairs):
            raise ValueError(
                f"--{split}_documents {file} counts {total:,} lines, but the {split} set has {len(pairs):,}: "
                "give the matching file, or none"
            )
        return cls(pairs[:limit], documents)

    def candidates(self, found: Iterable[Translation]) -> "Candidates":
        """Group the translations of the sentences, in their order, by document."""
        found = iter(found)
        return Candidates(self.pairs, [list(islice(found, document.n_lines)) for document in self.documents])


class Candidates(NamedTuple):
    """The beam's candidates for each sentence of each document."""

    pairs: ParallelText
    documents: list[list[Translation]]

    @property
    def unchanged(self) -> list[str]:
        """Best translations by the translator alone."""
        return [translation.text for document in self.documents for translation in document]

    def chosen(self, rescorer: DocumentRescorer, on_progress: Callable[[int], object] = lambda _: None) -> list[str]:
        """Return the best translations by translator and language model."""
        return [rescored.translation.text for rescored in rescorer.rescore_documents(self.documents, on_progress)]


def find_weights(
    rescorers: Sequence[DocumentRescorer], on_dev: Candidates, weights: Sequence[float], bleu: base.Metric
) -> tuple[list[DocumentRescorer], list[WeightTrial]]:
    """Return each rescorer with its best weight, and the trials of all weights, which are also printed."""
    print("\n  memory  weight   BLEU  length ratio  changed", flush=True)
    trials = [_try_weights(rescorer, on_dev, weights, bleu) for rescorer in rescorers]
    best = [replace(rescorer, weight=best_weight(found)) for rescorer, found in zip(rescorers, trials, strict=True)]
    return best, [trial for found in trials for trial in found]


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
            return on_dev.chosen(replace(rescorer, weight=weight), bar.update)

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
    """Score the rescorers' choices, each against the translator alone, and the later rescorers against the first.

    Args:
        rescorers: rescorers by name.
        on_test: the candidates they choose from.
        text: test set.
        metrics: as returned by `build_metrics`.
        n_samples: number of resamples of the paired bootstrap.
    """
    beam = next(iter(rescorers.values())).search.beam_size
    systems = [System(f"beam {beam}", on_test.unchanged)]
    systems += [System(name, on_test.chosen(rescorer)) for name, rescorer in rescorers.items()]
    scores, comparisons = compare(systems, text.references, metrics, "bootstrap", n_samples)
    comparisons += compare(systems[1:], text.references, metrics, "bootstrap", n_samples)[1]
    return [text.evaluation(system, found) for system, found in zip(systems, scores, strict=True)], comparisons
