"""Translations as output: lines for people and for common MT tools, JSON for programs, notices about lines."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from utils.command import Namespace, aligned
from utils.search.inspection import Inspector, Position, Score
from utils.search.translator import Candidate, Translation
from utils.terminal.catalog import Catalog
from utils.terminal.subtitles import Subtitles
from utils.text.language import count_letters, detect, looks_untokenized, refuse_other_language

if TYPE_CHECKING:  # with torch, which takes seconds to import
    from utils.search.forced import Links

Progress = Callable[[int], object]  # called with the number of lines that have just been finished

TAB = "\t"  # separates the columns of n-best lists
_DIGITS = 4  # more are noise
_MOST_NOTICES = 10  # of a kind; a large file of another sort of text has one for every line
_UNKNOWN, _CUT = "tokens not in the vocabulary", "cut off"  # kinds of notices


def notices(translation: Translation) -> dict[str, str]:
    """Return notices about a translation for its reader, by their kinds."""
    found = {}
    if translation.unknown:
        found["left unchanged"] = "no part of it is in the vocabulary; left unchanged"
    elif unknown := translation.unknown_tokens:
        found[_UNKNOWN] = f"not in the vocabulary, so the model reads <unk>: {' '.join(dict.fromkeys(unknown))}"
    if translation.is_far:
        found["far"] = "the model is unsure: this is far from what it has learned from"
    if dropped := translation.dropped:
        found["addresses lost"] = f"the translation does not have {' '.join(dropped)}"
    if lost := [term for term, is_there in translation.terms if not is_there]:
        found["terms missing"] = f"the translation does not have the terms {', '.join(lost)}"
    return found


def score_notices(judgement: Score) -> dict[str, str]:
    """Return notices about a scored translation, by their kinds."""
    found = {}
    if lost := judgement.lost_tokens:
        found[_CUT] = f"longer than the model's window; {lost} tokens were ignored"
    if unknown := judgement.n_unknown:
        found[_UNKNOWN] = f"{unknown} tokens of the translation are not in the vocabulary: scored as <unk>"
    return found


def score_table(judgement: Score) -> list[str]:
    """Return a line for each token, and one for the whole translation."""
    rows = [[token, _percent(log_prob)] for token, log_prob in zip(judgement.tokens, judgement.log_probs, strict=True)]
    total = f"{len(judgement.tokens)} tokens, perplexity {judgement.perplexity:.2f}"
    return [*aligned(rows, "lr", indent=""), "", f"log-probability {judgement.log_prob:.{_DIGITS}f}, {total}"]


def alternatives_table(positions: Sequence[Position]) -> list[str]:
    """Return a line for each position: its number, its token, and the likeliest tokens with their probabilities."""
    rows = []
    for position in positions:
        likeliest = [cell for token, log_prob in position.likeliest for cell in (token, _percent(log_prob))]
        rows.append([str(position.number), position.token, "│", *likeliest])
    n_columns = max(map(len, rows))
    filled = [row + [""] * (n_columns - len(row)) for row in rows]
    return aligned(filled, "rll" + "lr" * ((n_columns - 3) // 2), indent="")


def pharaoh(links: "Links") -> str:
    """Write links as `0-0 1-2`: the format of Pharaoh, Moses and the aligners around them."""
    return " ".join(f"{source}-{target}" for source, target in links)


def _percent(log_prob: float) -> str:
    percent = 100 * math.exp(log_prob)
    return f"{percent:.1f} %" if percent >= 0.1 else "<0.1 %"


def _rounded(log_probs: Sequence[float]) -> list[float]:
    return [round(log_prob, _DIGITS) for log_prob in log_probs]


def _json_line(fields: dict[str, Any]) -> str:
    return json.dumps(fields, ensure_ascii=False)


def _candidate(candidate: Candidate) -> dict[str, Any]:
    return {"translation": candidate.text, "score": round(candidate.score, _DIGITS), "tokens": candidate.tokens}


class Reads(NamedTuple):
    """What kind of text a run has learned to read."""

    language: str
    tokenized: bool = False  # spaces separate all words and marks

    def notices(self, texts: Sequence[str]) -> list[str]:
        """Return what is to be said about texts of another kind."""
        found = []
        try:
            if (kind := detect("\n".join(texts), ["en", self.language])) is None or kind.language != self.language:
                refuse_other_language(texts, self.language, "the text", "--run names a run that reads it")
        except ValueError as error:  # a list of names may be in another script: it is translated all the same
            found.append(str(error))
        if self.tokenized and looks_untokenized(texts):
            found.append(
                "this run learned from text where spaces separate all words and marks: text of that kind, perhaps in "
                "lower case, is translated better"
            )
        return found


@dataclass
class Presenter:
    """Formats output for chunks of lines: translations, alternatives, or scores of given translations."""

    inspector: Inspector
    shown: Namespace  # the arguments of translate.py: format, n_best, prefix, glossary, log_probs, alignment
    log: Callable[[str], object]  # called with notices for the reader, which name their lines
    reads: Reads
    is_known: bool = False  # what kind of text it is
    n_notices: Counter[str] = field(default_factory=Counter)  # by their kinds
    terms: Counter[tuple[str, bool]] = field(default_factory=Counter)  # of the glossary; whether translations have them
    n_with_terms: int = 0  # lines
    n_judged: int = 0  # translations scored so far
    n_tokens: int = 0
    log_prob: float = 0.0

    def translations(self, first: int, texts: Sequence[str], on_progress: Progress = lambda _: None) -> Iterator[str]:
        """Yield a line for each text, or for each candidate of each text; the number of the first is `first`."""
        if not self.is_known and count_letters("".join(texts))[0]:  # the first lines may be numbers, and tell nothing
            self.is_known = True
            for notice in self.reads.notices(texts):
                self.log(notice)
        found = self._translate(texts, on_progress, first)
        for number, translation in enumerate(found, first):
            self._notify(number, notices(translation))
        if self.shown.format == "jsonl":
            yield from map(_json_line, self._records(texts, found))
        elif self.shown.format == "pharaoh":
            for words in self.inspector.words(found):  # source words, target words and links
                yield "\t".join([" ".join(words.source), " ".join(words.target), pharaoh(words.links)])
        elif self.shown.n_best == 1:
            yield from (translation.text for translation in found)
        else:  # an n-best list, as Moses writes it
            for number, translation in enumerate(found, first):
                for one in translation.candidates:
                    yield f"{number}\t{one.score:.{_DIGITS}f}\t{one.text.replace(TAB, ' ')}"

    def in_shape(self, file: Subtitles | Catalog, on_progress: Progress) -> str:
        """Return a file with its texts translated, and all else as it was; notices have the numbers of their lines."""
        texts = [text.text for text in file.texts]
        for notice in self.reads.notices(texts):
            self.log(notice)
        found, has_tags = self._translate(texts, on_progress), any(text.has_tags for text in file.texts)
        links = self.inspector.span_links(texts, found) if has_tags else [()] * len(texts)
        filled = file.filled([(one.text, each) for one, each in zip(found, links, strict=True)])
        for number, one, text in zip(file.numbers, found, file.texts, strict=True):
            lost = {"lost": f"{file.lost} {' '.join(sorted(text.lost))}"} if text.lost else {}
            self._notify(number, notices(one) | lost)
        return filled

    def alternatives(self, text: str, k: int) -> Iterator[str]:
        """Yield the translation of a text and the k likeliest tokens at each position, or only after the prefix."""
        (found,) = self._translate([text])
        positions = self.inspector.positions(found, k, self.shown.prefix)
        self._notify(1, notices(found))
        if self.shown.format == "jsonl":
            (record,) = self._records([text], [found])
            record["alternatives"] = [
                {
                    "position": position.number,
                    "token": position.token,
                    "likeliest": [{"token": token, "log_prob": round(p, _DIGITS)} for token, p in position.likeliest],
                }
                for position in positions
            ]
            yield _json_line(record)
        else:
            yield from (found.text, "", *alternatives_table(positions))

    def judgements(
        self,
        first: int,
        pairs: Sequence[tuple[str, str]],
        on_progress: Progress = lambda _: None,
        by_token: bool = False,
    ) -> Iterator[str]:
        """Yield the score of the second of each pair as a translation of the first: a line per pair, or per token."""
        found = self.inspector.scores([source for source, _ in pairs], [given for _, given in pairs])
        for number, ((source, given), judgement) in enumerate(zip(pairs, found, strict=True), first):
            self._notify(number, score_notices(judgement))
            self.log_prob += judgement.log_prob
            self.n_tokens += len(judgement.tokens)
            if self.shown.format == "jsonl":
                fields = {
                    "source": source,
                    "translation": given,
                    "log_prob": round(judgement.log_prob, _DIGITS),
                    "perplexity": round(judgement.perplexity, _DIGITS),
                    "tokens": judgement.tokens,
                    "log_probs": _rounded(judgement.log_probs),
                    "lost_tokens": judgement.lost_tokens,
                    "unknown_tokens": judgement.n_unknown,
                }
                yield _json_line(fields)
            elif by_token:
                yield from score_table(judgement)
            else:
                yield f"{judgement.log_prob:.{_DIGITS}f}\t{len(judgement.tokens)}\t{judgement.perplexity:.{_DIGITS}f}"
        self.n_judged += len(pairs)
        on_progress(len(pairs))

    def total(self) -> str:
        """Return a summary of all translations scored so far."""
        perplexity = math.exp(-self.log_prob / max(1, self.n_tokens))
        return f"{self.n_judged:,} lines, {self.n_tokens:,} tokens with </s>, perplexity {perplexity:.2f}"

    def conclude(self) -> None:
        """Log how many notices of each kind were left out, and how many terms of the glossary there are."""
        for kind, count in self.n_notices.items():
            if (more := count - _MOST_NOTICES) > 0:
                which = "" if self.shown.get("in_shape") else "; --format jsonl tells which"
                self.log(f"{more:,} more line{'s' * (more > 1)}: {kind}{which}")
        if self.shown.glossary is not None:
            lost = {term: n for (term, is_there), n in self.terms.most_common() if not is_there}
            shown = ", ".join(f"{term} ({n})" if n > 1 else term for term, n in [*lost.items()][:_MOST_NOTICES])
            n, missing = self.terms.total(), f"; missing: {shown}" if lost else ""
            n_there, lines = n - sum(lost.values()), f"{self.n_with_terms:,} line{'s' * (self.n_with_terms != 1)}"
            self.log(f"glossary: {n_there:,} of {n:,} terms appear in {lines}{missing}")

    def _notify(self, number: int, found: Mapping[str, str]) -> None:
        """Log the notices about the line of this number, but only the first of each kind."""
        for kind, text in found.items():
            self.n_notices[kind] += 1
            if self.n_notices[kind] <= _MOST_NOTICES:
                self.log(f"line {number}: {text}")

    def _translate(
        self, texts: Sequence[str], on_progress: Progress = lambda _: None, first: int = 1
    ) -> list[Translation]:
        prefixes = [self.shown.prefix] * len(texts) if self.shown.prefix else None
        found = self.inspector.translator.translate(texts, on_progress, self.shown.n_best, prefixes, first)
        for translation in found:
            self.terms.update(translation.terms)
            self.n_with_terms += bool(translation.terms)
        return found

    def _records(self, texts: Sequence[str], found: Sequence[Translation]) -> list[dict[str, Any]]:
        """Return the JSON fields of each translation; costly ones only on request."""
        rows: list[dict[str, Any]] = [
            {
                "source": text,
                **_candidate(one.candidates[0]),
                "unknown": one.unknown,
                "unknown_tokens": one.unknown_tokens,
                "far": one.is_far,
                "dropped": one.dropped,
            }
            for text, one in zip(texts, found, strict=True)
        ]
        for row, one in zip(rows, found, strict=True):
            if self.shown.glossary is not None:
                row["terms"] = [{"term": term, "appears": is_there} for term, is_there in one.terms]
            if self.shown.n_best > 1:
                row["n_best"] = [*map(_candidate, one.candidates)]
            if len(one.pieces) > 1:
                row["sentences"] = [
                    {"source": piece.source, "candidates": [*map(_candidate, piece.candidates)]} for piece in one.pieces
                ]
        if self.shown.log_probs:
            for row, log_probs in zip(rows, self.inspector.log_probs(found), strict=True):
                row["log_probs"] = _rounded(log_probs)
        if self.shown.alignment:
            tokens, alignments = self.inspector.source_tokens(found), self.inspector.alignments(found)
            for row, source, links in zip(rows, tokens, alignments, strict=True):
                row |= {"source_tokens": source, "alignment": pharaoh(links)}
        return rows
