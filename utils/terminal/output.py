"""Translations as output: lines for people and for common MT tools, JSON for programs, notices about lines."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

from utils.command import aligned
from utils.search.inspection import Inspector, Judgement, Position, WordAligner, perplexity, pharaoh
from utils.search.translator import Candidate, Translation
from utils.text.language import looks_untokenized

DIGITS = 4  # more are noise
_SHOWN = 10  # notices of a kind; a large file of another sort of text has one for every line
_UNKNOWN, _CUT = "tokens not in the vocabulary", "cut off"  # kinds of notices


class Notice(NamedTuple):
    """A notice about one line, and its kind, by which it is counted."""

    kind: str
    text: str


class NoticeBoard:
    """Calls `say` with notices as they come, but only with the first of each kind."""

    def __init__(self, say: Callable[[str], object]) -> None:
        self._say = say
        self._counts: Counter[str] = Counter()

    def post(self, number: int, notices: Iterable[Notice]) -> None:
        """Say the notices about the line of this number."""
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


def judgement_notices(judgement: Judgement) -> list[Notice]:
    """Return notices about a scored translation for the reader."""
    found = []
    if lost := judgement.lost_tokens:
        found.append(Notice(_CUT, f"longer than the model's window; {lost} tokens were ignored"))
    if unknown := judgement.n_unknown:
        text = f"{unknown} tokens of the translation are not in the vocabulary: scored as <unk>"
        found.append(Notice(_UNKNOWN, text))
    return found


def ranked_lines(translation: Translation) -> list[str]:
    """Return the candidates of one text as a numbered list."""
    return [f"{i:2}  {one.score:9.{DIGITS}f}  {one.text}" for i, one in enumerate(translation.candidates, 1)]


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
        "log_probs": _rounded(judgement.log_probs),
        "lost_tokens": judgement.lost_tokens,
        "unknown_tokens": judgement.n_unknown,
    }


def judgement_table(judgement: Judgement) -> list[str]:
    """Return a line for each token, and one for the whole translation."""
    rows = [[token, _percent(log_prob)] for token, log_prob in zip(judgement.tokens, judgement.log_probs, strict=True)]
    total = f"{len(judgement.tokens)} tokens, perplexity {judgement.perplexity:.2f}"
    return [*aligned(rows, "lr", indent=""), "", f"log-probability {judgement.log_prob:.{DIGITS}f}, {total}"]


def alternatives_table(positions: Sequence[Position]) -> list[str]:
    """Return a line for each position: its number, its token, and the likeliest tokens with their probabilities."""
    rows = []
    for position in positions:
        likeliest = [cell for token, log_prob in position.likeliest for cell in (token, _percent(log_prob))]
        rows.append([str(position.number), position.token, "│", *likeliest])
    n_columns = max(len(row) for row in rows)
    filled = [row + [""] * (n_columns - len(row)) for row in rows]
    return aligned(filled, "rll" + "lr" * ((n_columns - 3) // 2), indent="")


def _alternatives_record(position: Position) -> dict[str, object]:
    likeliest = [{"token": token, "log_prob": round(log_prob, DIGITS)} for token, log_prob in position.likeliest]
    return {"position": position.number, "token": position.token, "likeliest": likeliest}


def _candidate(candidate: Candidate) -> dict[str, object]:
    return {
        "translation": candidate.text,
        "score": round(candidate.score, DIGITS),
        "tokens": candidate.tokens,
    }


def _rounded(log_probs: Sequence[float] | None) -> list[float] | None:
    return None if log_probs is None else [round(log_prob, DIGITS) for log_prob in log_probs]


def _percent(log_prob: float) -> str:
    percent = 100 * math.exp(log_prob)
    return f"{percent:.1f} %" if percent >= 0.1 else "<0.1 %"


class Shown(NamedTuple):
    """What to show."""

    n_best: int = 1  # translations per text
    prefix: str = ""  # text that translations start with
    as_json: bool = False  # JSON Lines; otherwise lines of text, which show neither of the next two
    log_probs: bool = False
    alignment: bool = False
    as_links: bool = False  # lines of words and the links between them


class Presenter:
    """Formats output for chunks of lines: translations, alternatives, or scores of given translations.

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
        else:  # an n-best list, as Moses writes it
            for number, translation in enumerate(found, first):
                for one in translation.candidates:
                    yield f"{number}\t{one.score:.{DIGITS}f}\t{one.text}"

    def alternatives(self, text: str, k: int) -> Iterator[str]:
        """Yield the translation of a text and the k likeliest tokens at each position, or only after the prefix."""
        found = self._translate([text])
        positions = self.inspector.positions(text, found[0], k, self.shown.prefix)
        self.notices.post(1, notices(found[0]))
        if self.shown.as_json:
            yield json_line(
                {**self._records([text], found)[0], "alternatives": [*map(_alternatives_record, positions)]}
            )
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
                yield f"{judgement.log_prob:.{DIGITS}f}\t{len(judgement.tokens)}\t{judgement.perplexity:.{DIGITS}f}"
        self._n_judged += len(pairs)

    def total(self) -> str:
        """Return a summary of all translations scored so far."""
        if not self._n_judged:
            return "nothing to score"
        value = perplexity(self._log_prob, self._n_tokens)
        return f"{self._n_judged:,} lines, {self._n_tokens:,} tokens with </s>, perplexity {value:.2f}"

    def _linked(self, texts: Sequence[str], found: Sequence[Translation]) -> Iterator[str]:
        """Yield `source words <tab> target words <tab> links`; no links for what was not translated in one piece."""
        tokens, alignments = self.inspector.source_tokens(texts), self.inspector.alignments(texts, found)
        for text, translation, source, links in zip(texts, found, tokens, alignments, strict=True):
            if links is None:
                yield "\t".join([" ".join(text.split()), " ".join(translation.text.split()), ""])
            else:
                words = self._aligner.join(source, translation.candidates[0].tokens, links)
                yield "\t".join([" ".join(words.source), " ".join(words.target), pharaoh(words.links)])

    @cached_property
    def _aligner(self) -> WordAligner:
        """Word aligner, built on first use because it goes through the vocabularies."""
        return WordAligner(self.inspector.translator.tokenizers)

    def _translate(
        self, texts: Sequence[str], on_progress: Callable[[int], object] = lambda _: None, first: int = 1
    ) -> list[Translation]:
        prefixes = [self.shown.prefix] * len(texts) if self.shown.prefix else None
        return self.inspector.translator.translate(texts, on_progress, self.shown.n_best, prefixes, first)

    def _records(self, texts: Sequence[str], found: Sequence[Translation]) -> list[dict[str, object]]:
        """Return the JSON fields of each translation; costly ones only on request."""
        fields: list[dict[str, object]] = [
            {
                "source": text,
                **_candidate(one.candidates[0]),
                "pieces": one.n_pieces,
                "lost_tokens": one.lost_tokens,
                "unknown": one.unknown,
                "unknown_tokens": one.n_unknown,
            }
            for text, one in zip(texts, found, strict=True)
        ]
        if self.shown.n_best > 1:
            for row, one in zip(fields, found, strict=True):
                row["n_best"] = [_candidate(candidate) for candidate in one.candidates]
        if self.shown.log_probs:
            for row, log_probs in zip(fields, self.inspector.log_probs(texts, found), strict=True):
                row["log_probs"] = _rounded(log_probs)
        if self.shown.alignment:  # null for a text that was translated in pieces
            tokens = self.inspector.source_tokens(texts)
            for row, source, links in zip(fields, tokens, self.inspector.alignments(texts, found), strict=True):
                row["source_tokens"] = None if links is None else source
                row["alignment"] = None if links is None else pharaoh(links)
        return fields
