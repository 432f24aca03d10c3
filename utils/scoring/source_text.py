"""A text of a run's corpus, and what the run makes of it."""

from collections.abc import Sequence
from typing import NamedTuple

from tqdm import tqdm

from utils.dataset.corpus import Corpus, prepare_corpus
from utils.dataset.parallel_text import ParallelText, read_parallel
from utils.evaluation.metric import bleu_tokenizer
from utils.run import Run
from utils.scoring.verb import warn
from utils.search.translator import Translation, Translator


def split_name(corpus: Corpus, split: str, n_first: int | None) -> str:
    """What was translated, in words."""
    part = f", first {n_first} sentences" if n_first else ""
    return f"{corpus.name} {split}, {corpus.src_lang}-{corpus.tgt_lang}{part}"


class RunText(NamedTuple):
    """A text of the corpus that a run was trained on.

    Args:
        corpus: where it is from.
        pairs: sources and references.
        name: what it is, in words.
        tokenize: how BLEU cuts it.
    """

    corpus: Corpus
    pairs: ParallelText
    name: str
    tokenize: str


def read_run_text(run: Run, split: str, limit: int | None) -> RunText:
    """Read the dev or the test text of a run's corpus, or as many of its first sentences as `limit` says."""
    corpus = prepare_corpus(run.config.data)
    pairs = read_parallel(getattr(corpus, split))[:limit]
    name = split_name(corpus, split, limit and len(pairs))
    return RunText(corpus, pairs, name, bleu_tokenizer(corpus.tgt_lang, corpus.pre_tokenized))


def n_best(translator: Translator, sources: Sequence[str], n: int) -> list[Translation]:
    """The n best translations of each source; on standard error, what could not be translated whole."""
    with tqdm(total=len(sources), desc="translating", unit="sentence", disable=None, leave=False) as bar:
        found = translator.translate(sources, bar.update, n)
    for n_affected, what in (
        (sum(translation.lost_tokens > 0 for translation in found), "longer than the model's window and were cut"),
        (sum(translation.unknown for translation in found), "of unknown characters alone and were left as they are"),
    ):
        if n_affected:
            warn(f"{n_affected} of {len(found)} sources are {what}")
    return found
