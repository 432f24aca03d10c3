"""Translations as output: lines for people and for common MT tools, JSON for programs, notices about lines."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from utils.command import aligned
from utils.search.inspection import (
    Inspector,
    Judgement,
    Links,
    Position,
    WordAligner,
    WordAlignment,
    perplexity,
    pharaoh,
)
from utils.search.translator import Candidate, Translation
from utils.text.language import looks_untokenized

# What a reader should know about lines: the first few of a kind one by one, the rest as a number.

_SHOWN = 10  # of a kind; a large file of another sort of text has one for every line


class Notice(NamedTuple):
    """A notice about one line, and its kind, by which it is counted."""

    kind: str
    text: str


class NoticeBoard:
    """Says notices as they come, but only the first of each kind.

    Args:
        say: called with what is to be said, without line feed.
    """

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._counts: Counter[str] = Counter()

    def post(self, number: int, notices: Iterable[Notice]) -> None:
        """Say the notices about a line.

        Args:
            number: of the line.
            notices: what to say about it.
        """
        for notice in notices:
            self._counts[notice.kind] += 1
            if self._counts[notice.kind] <= _SHOWN:
                self._say(f"line {number}: {notice.text}")

    def conclude(self) -> None:
        """Say how many notices of each kind were left out."""
        for kind, count in self._counts.items():
            if count > _SHOWN:
                left_out = "1 more line" if count == _SHOWN + 1 else f"{count - _SHOWN:,} more lines"
                self._say(f"{left_out}: {kind}; --format jsonl tells which")


# Formatting of translations: lines for people and for common MT tools, JSON for programs.

DIGITS = 4  # more are noise
_UNKNOWN, _CUT = "tokens not in the vocabulary", "cut off"  # kinds of notices


def n_best_lines(label: str | int, translation: Translation) -> list[str]:
    """Return `label <tab> score <tab> text` for each candidate; with line numbers as labels, this is an n-best list."""
    return [f"{label}\t{candidate.score:.{DIGITS}f}\t{candidate.text}" for candidate in translation.candidates]


def ranked_lines(translation: Translation) -> list[str]:
    """Return the candidates of one text as a numbered list."""
    return [f"{i:2}  {one.score:9.{DIGITS}f}  {one.text}" for i, one in enumerate(translation.candidates, 1)]


def notices(translation: Translation) -> list[Notice]:
    """Return notices about a translation for its reader."""
    found = []
    if translation.unknown:
        found.append(Notice("left unchanged", "no part of it is in the vocabulary; left unchanged"))
    elif translation.n_unknown:
        tokens = "1 token is" if translation.n_unknown == 1 else f"{translation.n_unknown} tokens are"
        found.append(Notice(_UNKNOWN, f"{tokens} not in the vocabulary; read as <unk>"))
    if lost := translation.lost_tokens:
        found.append(Notice(_CUT, f"a sentence is longer than the model's window; {lost} tokens were cut off"))
    elif translation.n_pieces > 1:
        found.append(Notice("translated in pieces", f"long; translated in {translation.n_pieces} pieces"))
    return found


def record(source: str, translation: Translation, n_best: int = 1) -> dict[str, object]:
    """Return the JSON fields of a translation."""
    best = translation.candidates[0]
    found: dict[str, object] = {
        "source": source,
        **_candidate(best),
        "pieces": translation.n_pieces,
        "lost_tokens": translation.lost_tokens,
        "unknown": translation.unknown,
        "unknown_tokens": translation.n_unknown,
    }
    if n_best > 1:
        found["n_best"] = [_candidate(candidate) for candidate in translation.candidates]
    return found


def alignment_fields(source_tokens: Sequence[str], links: Links | None) -> dict[str, object]:
    """Return the JSON fields of an alignment; null if the text was translated in pieces."""
    return {
        "source_tokens": source_tokens if links is not None else None,
        "alignment": pharaoh(links) if links is not None else None,
    }


def linked_line(alignment: WordAlignment) -> str:
    """Return `source words <tab> target words <tab> links`, the links in the format of word aligners."""
    return "\t".join([" ".join(alignment.source), " ".join(alignment.target), pharaoh(alignment.links)])


def unlinked_line(source: str, target: str) -> str:
    """Return the line of a text that was not translated in one piece: without links."""
    return "\t".join([" ".join(source.split()), " ".join(target.split()), ""])


def rounded(log_probs: Sequence[float] | None) -> list[float] | None:
    """Round log-probabilities to a readable number of digits."""
    return None if log_probs is None else [round(log_prob, DIGITS) for log_prob in log_probs]


def json_line(fields: dict[str, object]) -> str:
    """Return one line of JSON, with non-ASCII characters unescaped."""
    return json.dumps(fields, ensure_ascii=False)


def judgement_record(source: str, given: str, judgement: Judgement) -> dict[str, object]:
    """Return the JSON fields of a scored translation."""
    return {
        "source": source,
        "translation": given,
        "log_prob": round(judgement.log_prob, DIGITS),
        "perplexity": round(judgement.perplexity, DIGITS),
        "tokens": judgement.tokens,
        "log_probs": rounded(judgement.log_probs),
        "lost_tokens": judgement.lost_tokens,
        "unknown_tokens": judgement.n_unknown,
    }


def judgement_line(judgement: Judgement) -> str:
    """Return `log-probability <tab> number of tokens, </s> included <tab> perplexity`."""
    return f"{judgement.log_prob:.{DIGITS}f}\t{len(judgement.tokens)}\t{judgement.perplexity:.{DIGITS}f}"


def judgement_table(judgement: Judgement) -> list[str]:
    """Return a line for each token, and one for the whole translation."""
    rows = [[token, _percent(log_prob)] for token, log_prob in zip(judgement.tokens, judgement.log_probs, strict=True)]
    n_tokens = len(judgement.tokens)
    return [
        *aligned(rows, "lr", indent=""),
        "",
        f"log-probability {judgement.log_prob:.{DIGITS}f}, {n_tokens} tokens, perplexity {judgement.perplexity:.2f}",
    ]


def judgement_notices(judgement: Judgement) -> list[Notice]:
    """Return notices about a scored translation for the reader."""
    found = []
    if lost := judgement.lost_tokens:
        found.append(Notice(_CUT, f"longer than the model's window; {lost} tokens were ignored"))
    if unknown := judgement.n_unknown:
        text = f"{unknown} tokens of the translation are not in the vocabulary: scored as <unk>"
        found.append(Notice(_UNKNOWN, text))
    return found


def alternatives_table(positions: Sequence[Position]) -> list[str]:
    """Return a line for each position: its number, its token, and the likeliest tokens with their probabilities."""
    rows = []
    for position in positions:
        likeliest = [cell for token, log_prob in position.likeliest for cell in (token, _percent(log_prob))]
        rows.append([str(position.number), position.token, "│", *likeliest])
    n_columns = max(len(row) for row in rows)
    filled = [row + [""] * (n_columns - len(row)) for row in rows]
    return aligned(filled, "rll" + "lr" * ((n_columns - 3) // 2), indent="")


def alternatives_record(positions: Sequence[Position]) -> list[dict[str, object]]:
    """Return the JSON fields of alternatives, an entry for each position."""
    return [
        {
            "position": position.number,
            "token": position.token,
            "likeliest": [
                {"token": token, "log_prob": round(log_prob, DIGITS)} for token, log_prob in position.likeliest
            ],
        }
        for position in positions
    ]


def _candidate(candidate: Candidate) -> dict[str, object]:
    return {
        "translation": candidate.text,
        "score": round(candidate.score, DIGITS),
        "tokens": candidate.tokens,
    }


def _percent(log_prob: float) -> str:
    percent = 100 * math.exp(log_prob)
    return f"{percent:.1f} %" if percent >= 0.1 else "<0.1 %"


# Output lines for input lines: translations, alternatives, or scores of given translations.


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
