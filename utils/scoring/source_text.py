"""Texts of a run's corpus, and their translation by the run."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tqdm import tqdm

from utils.dataset.corpus import Corpus, prepare_corpus, prepare_to_score
from utils.dataset.parallel_text import ParallelText, read_parallel
from utils.evaluation.metric import bleu_tokenizer
from utils.run import Run
from utils.scoring.verb import warn
from utils.search.translator import Translation, Translator


def _split_name(corpus: Corpus, split: str, n_first: int | None) -> str:
    """Describe what was translated, for titles."""
    part = f", first {n_first} sentences" if n_first else ""
    return f"{corpus.name} {split}, {corpus.src_lang}-{corpus.tgt_lang}{part}"


class RunText(NamedTuple):
    """A text of the corpus that a run was trained on.

    Args:
        corpus: the corpus that the text belongs to.
        pairs: sources and references.
        name: description of the text, for titles.
        tokenize: tokenizer for BLEU.
    """

    corpus: Corpus
    pairs: ParallelText
    name: str
    tokenize: str


def read_run_text(run: Run, split: str, limit: int | None) -> RunText:
    """Read the dev or test set of a run's corpus, or its first `limit` sentences."""
    corpus = prepare_to_score(run.config.data)
    pairs = read_parallel(getattr(corpus, split))[:limit]
    name = _split_name(corpus, split, limit and len(pairs))
    return RunText(corpus, pairs, name, bleu_tokenizer(corpus.tgt_lang, corpus.pre_tokenized))


def training_text(run: Run) -> Path | None:
    """Return the target side of the text that a run was trained on, or None, with a warning, where it is gone."""
    try:
        return prepare_corpus(run.config.data).train.tgt
    except ValueError as problem:
        warn(f"no F1 by word frequency, which needs the training text: {problem}")
        return None


def n_best(translator: Translator, sources: Sequence[str], n: int) -> list[Translation]:
    """Return the n best translations of each source; warn of sources that could not be translated completely."""
    with tqdm(total=len(sources), desc="translating", unit="sentence", disable=None, leave=False) as bar:
        found = translator.translate(sources, bar.update, n)
    for n_affected, what in (
        (sum(translation.lost_tokens > 0 for translation in found), "longer than the model's window and were cut off"),
        (sum(translation.unknown for translation in found), "entirely outside the vocabulary and were left unchanged"),
    ):
        if n_affected:
            warn(f"{n_affected} of {len(found)} sources are {what}")
    return found
