"""Output lines for input lines: translations, alternatives, or scores of given translations."""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from utils.search.inspection import Inspector, perplexity
from utils.search.translator import Translation
from utils.search.word_alignment import WordAligner
from utils.terminal.notice import NoticeBoard
from utils.terminal.presentation import (
    alignment_fields,
    alternatives_record,
    alternatives_table,
    json_line,
    judgement_line,
    judgement_notices,
    judgement_record,
    judgement_table,
    linked_line,
    n_best_lines,
    notices,
    record,
    rounded,
    unlinked_line,
)
from utils.text.spacing import looks_untokenized


class Shown(NamedTuple):
    """What to show."""

    n_best: int = 1  # translations per text
    prefix: str = ""  # text that translations start with
    as_json: bool = False  # JSON Lines; otherwise lines of text, which show neither of the next two
    log_probs: bool = False
    alignment: bool = False
    as_links: bool = False  # lines of words and the links between them


class Presenter:
    """Formats output for chunks of lines.

    Args:
        inspector: queries the models.
        shown: what to show.
        say: called with notices for the reader, which name their lines.
        tokenized: whether spaces separate all words and marks of the text that the model learned from; text of another
            kind is remarked on.
    """

    def __init__(
        self, inspector: Inspector, shown: Shown, say: Callable[[str], object], tokenized: bool = False
    ) -> None:
        self.inspector = inspector
        self.shown = shown
        self.notices = NoticeBoard(say)
        self._say = say
        self._tokenized = tokenized
        self._log_prob, self._n_tokens, self._n_judged = 0.0, 0, 0

    def translations(self, first: int, texts: Sequence[str], on_progress: Callable[[int], object]) -> Iterator[str]:
        """Yield a line for each text, or for each candidate of each text.

        Args:
            first: line number of the first text.
            texts: a chunk of lines.
            on_progress: called with the number of newly translated texts.
        """
        if first == 1 and self._tokenized and looks_untokenized(texts):
            self._say(
                "this run learned from text where spaces separate all words and marks: text of that kind, perhaps in "
                "lower case, is translated better"
            )
        found = self._translate(texts, on_progress, first)
        for number, translation in enumerate(found, first):
            self.notices.post(number, notices(translation))
        if self.shown.as_json:
            yield from map(json_line, self._records(texts, found))
        elif self.shown.as_links:
            yield from self._linked(texts, found)
        elif self.shown.n_best == 1:
            yield from (translation.text for translation in found)
        else:
            for number, translation in enumerate(found, first):
                yield from n_best_lines(number, translation)

    def alternatives(self, text: str, k: int) -> Iterator[str]:
        """Yield the translation of a text and the k likeliest tokens at each position, or only after the prefix."""
        found = self._translate([text])
        positions = self.inspector.positions(text, found[0], k, self.shown.prefix)
        self.notices.post(1, notices(found[0]))
        if self.shown.as_json:
            yield json_line({**self._records([text], found)[0], "alternatives": alternatives_record(positions)})
        else:
            yield from (found[0].text, "", *alternatives_table(positions))

    def judgements(self, first: int, pairs: Sequence[tuple[str, str]], by_token: bool = False) -> Iterator[str]:
        """Yield the score of the second of each pair as a translation of the first: a line per pair, or per token."""
        found = self.inspector.judge([source for source, _ in pairs], [given for _, given in pairs])
        for number, ((source, given), judgement) in enumerate(zip(pairs, found, strict=True), first):
            self.notices.post(number, judgement_notices(judgement))
            self._log_prob += judgement.log_prob
            self._n_tokens += len(judgement.tokens)
            if self.shown.as_json:
                yield json_line(judgement_record(source, given, judgement))
            elif by_token:
                yield from judgement_table(judgement)
            else:
                yield judgement_line(judgement)
        self._n_judged += len(pairs)

    def total(self) -> str:
        """Return a summary of all translations scored so far."""
        if not self._n_judged:
            return "nothing to score"
        value = perplexity(self._log_prob, self._n_tokens)
        return f"{self._n_judged:,} lines, {self._n_tokens:,} tokens with </s>, perplexity {value:.2f}"

    def _linked(self, texts: Sequence[str], found: Sequence[Translation]) -> Iterator[str]:
        """Yield the words of each text and of its translation, and the links between them."""
        tokens, alignments = self.inspector.source_tokens(texts), self.inspector.alignments(texts, found)
        for text, translation, source, links in zip(texts, found, tokens, alignments, strict=True):
            if links is None:
                yield unlinked_line(text, translation.text)
            else:
                yield linked_line(self._aligner.join(source, translation.candidates[0].tokens, links))

    @cached_property
    def _aligner(self) -> WordAligner:
        """Word aligner, built on first use because it goes through the vocabularies."""
        return WordAligner(self.inspector.translator.tokenizers)

    def _translate(
        self, texts: Sequence[str], on_progress: Callable[[int], object] = lambda _: None, first: int = 1
    ) -> list[Translation]:
        translator = self.inspector.translator
        return translator.translate(texts, on_progress, self.shown.n_best, self._prefixes(texts), first)

    def _prefixes(self, texts: Sequence[str]) -> list[str] | None:
        """Return the prefix of each translation; None without one."""
        return [self.shown.prefix] * len(texts) if self.shown.prefix else None

    def _records(self, texts: Sequence[str], found: Sequence[Translation]) -> list[dict[str, object]]:
        """Return the JSON fields of each translation; costly ones only on request."""
        shown = self.shown
        fields = [record(text, translation, shown.n_best) for text, translation in zip(texts, found, strict=True)]
        if shown.log_probs:
            for row, log_probs in zip(fields, self.inspector.log_probs(texts, found), strict=True):
                row["log_probs"] = rounded(log_probs)
        if shown.alignment:
            tokens = self.inspector.source_tokens(texts)
            for row, source, links in zip(fields, tokens, self.inspector.alignments(texts, found), strict=True):
                row.update(alignment_fields(source, links))
        return fields
