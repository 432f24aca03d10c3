"""Checks of your own texts before hours go by: are they in their languages, on their sides, tokenized as is said?"""

from collections.abc import Callable, Iterable, Sequence

from utils.dataset.corpus import Corpus, DataConfig
from utils.dataset.parallel_text import Block, ParallelFiles, read_blocks
from utils.evaluation.plausibility import refuse_other_language
from utils.text.spacing import looks_tokenized, looks_untokenized

_FIT_BETTER = 2.0  # times as many known words: names and marks are in both languages


def refuse_other_languages(data: DataConfig) -> None:
    """Refuse a text of your own that begins in other languages than those it is said to be in.

    Raises:
        ValueError: the letters of a side are not those of its language.
    """
    for kind in ("", "more_", "dev_", "test_"):
        if (files := _given(data, kind)) is None:
            continue
        first = _beginning(files)
        sides = ("src", first.src, data.src_lang, files.src), ("tgt", first.tgt, data.tgt_lang, files.tgt)
        for side, lines, language, file in sides:
            remedy = f"{_are_swapped(kind)}, or is --data.{side}_lang wrong?"
            refuse_other_language(lines, language, str(file), remedy)


def refuse_swapped(data: DataConfig, corpus: Corpus) -> None:
    """Refuse texts of your own whose sides are the other way round than those of the text beside them, by their words.

    Letters do not tell English from German. Development and test text are compared with the training text, and further
    training text with the development text.

    Raises:
        ValueError: both sides share at least twice as many words with the opposite side.
    """
    for kind, beside in (("dev_", corpus.train), ("test_", corpus.train), ("more_", corpus.dev)):
        if (files := _given(data, kind)) is None:
            continue
        text, other = _beginning(files), _beginning(beside)
        src_words, tgt_words = _words(other.src), _words(other.tgt)
        if all(
            _known(lines, opposite) > _FIT_BETTER * _known(lines, own)
            for lines, own, opposite in ((text.src, src_words, tgt_words), (text.tgt, tgt_words, src_words))
        ):
            raise ValueError(
                f"{files.src} has the words of {beside.tgt}, and {files.tgt} those of {beside.src}: "
                f"{_are_swapped(kind)}?"
            )


def remark_on_tokens(data: DataConfig, corpus: Corpus, say: Callable[[str], object]) -> None:
    """Remark on spaces between words and marks that are not where the settings or the other texts have them."""
    if data.has_own_text:
        target, lines = corpus.dev.tgt, _beginning(corpus.dev).tgt
        if not corpus.pre_tokenized and looks_tokenized(lines):
            say(
                f"{target} looks tokenized: give --data.pre_tokenized true if spaces separate all words and marks, "
                "so that BLEU takes them as they are"
            )
        if corpus.pre_tokenized and looks_untokenized(lines):
            say(f"{target} does not look tokenized, and BLEU splits it at spaces: is --data.pre_tokenized true right?")
    if (more := _given(data, "more_")) is not None:
        sides = zip(more, corpus.dev, _beginning(more)[:2], _beginning(corpus.dev)[:2], strict=True)
        for file, other, lines, others in sides:
            if looks_untokenized(lines) != looks_untokenized(others):
                say(f"{file} looks tokenized otherwise than {other}: one kind of text is learned better than two")


def _given(data: DataConfig, kind: str) -> ParallelFiles | None:
    """Return a pair of your own files; None where there is none, or `prepare_corpus` says what is missing."""
    src, tgt = getattr(data, f"{kind}src"), getattr(data, f"{kind}tgt")
    return ParallelFiles(src, tgt) if src and tgt and src.is_file() and tgt.is_file() else None


def _beginning(files: ParallelFiles) -> Block:
    return next(iter(read_blocks(files)))


def _are_swapped(kind: str) -> str:
    return f"are --data.{kind}src and --data.{kind}tgt swapped"


def _words(lines: Iterable[str]) -> set[str]:
    return {word for line in lines for word in line.lower().split()}


def _known(lines: Sequence[str], words: set[str]) -> float:
    """Return the share of the words that are among others."""
    found = [word in words for line in lines for word in line.lower().split()]
    return sum(found) / max(1, len(found))
