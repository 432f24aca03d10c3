"""Translations as output: lines for people and for common MT tools, JSON for programs, notices about lines."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from utils.command import aligned
from utils.search.inspection import Inspector, Position, Score
from utils.search.translation import Candidate, Translation, perplexity
from utils.terminal.catalog import Catalog
from utils.terminal.option import Options
from utils.terminal.subtitles import Subtitles
from utils.text.language import count_letters, detect, looks_untokenized, refuse_other_language

if TYPE_CHECKING:  # with torch, which takes seconds to import
    from utils.search.forced import Links

Progress = Callable[[int], object]  # called with the number of lines that have just been finished

_DIGITS = 4  # more are noise
_MAX_NOTICES = 10  # of a topic; a large file of another sort of text has one for every line
_UNKNOWN, _TRUNCATED = "tokens not in the vocabulary", "cut off"  # topics of notices


# remark on a translation -> topic of the notice, and what it says of the words of the remark
_NOTICES = {
    "unknown": ("left unchanged", "no part of it is in the vocabulary; left unchanged"),
    "unknown_tokens": (_UNKNOWN, "not in the vocabulary, so the model reads <unk>: {}"),
    "far": ("far", "the model is unsure: this is far from what it has learned from"),
    "loop": ("loops", "the model repeated itself again and again: {}"),
    "wordless": ("not translated", "the translation has no word of {}"),
    "dropped": ("numbers, addresses and the like lost", "the translation does not have {}"),
}


def notices(translation: Translation) -> dict[str, str]:
    """Return notices about a translation for its reader, by their topics."""
    said = {}
    for name, remark in translation.remarks.items():
        if remark:
            topic, notice = _NOTICES[name]
            said[topic] = notice.format(" ".join(dict.fromkeys(remark)) if isinstance(remark, list) else remark)
    if lost := [term for term, is_there in translation.terms if not is_there]:
        said["terms missing"] = f"the translation does not have the terms {', '.join(lost)}"
    return said


def score_notices(score: Score) -> dict[str, str]:
    """Return notices about a scored translation, by their topics."""
    said = {}
    if score.lost_tokens:
        said[_TRUNCATED] = f"longer than the model's window; {score.lost_tokens} tokens were ignored"
    if score.n_unknown:
        said[_UNKNOWN] = f"{score.n_unknown} tokens of the translation are not in the vocabulary: scored as <unk>"
    return said


@dataclass(frozen=True)
class TextLines:
    """Lines of text: translations, lists of the best as Moses writes them, or tables."""

    options: Options
    inspector: Inspector

    def translations(self, first: int, _texts: Sequence[str], translations: Sequence[Translation]) -> Iterator[str]:
        """Yield a line for each translation, or for each candidate of each; the number of the first is `first`."""
        for number, translation in enumerate(translations, first):
            if self.options.n_best == 1:
                yield translation.text
                continue
            for candidate in translation.candidates:
                text = candidate.text.replace("\t", " ")  # which separates the columns
                yield f"{number}\t{candidate.score:.{_DIGITS}f}\t{text}"

    def scores(self, _pairs: Sequence[tuple[str, str]], scores: Sequence[Score]) -> Iterator[str]:
        """Yield a line for each score of a line; of a text, one for each token and one for all."""
        for score in scores:
            n_tokens = len(score.tokens)
            if not self.options.texts:
                yield f"{score.log_prob:.{_DIGITS}f}\t{n_tokens}\t{score.perplexity:.{_DIGITS}f}"
                continue
            cells = zip(score.tokens, map(_percent, score.log_probs), strict=True)
            yield from aligned([*map(list, cells)], "lr", indent="")
            total = f"{n_tokens} tokens, perplexity {score.perplexity:.2f}"
            yield from ("", f"log-probability {score.log_prob:.{_DIGITS}f}, {total}")

    def alternatives(self, _text: str, translation: Translation, positions: Sequence[Position]) -> Iterator[str]:
        """Yield the translation, and a line for each position: its number, token and the likeliest with percentages."""
        rows = []
        for position in positions:
            likeliest = [cell for token, log_prob in position.likeliest for cell in (token, _percent(log_prob))]
            rows.append([str(position.number), position.token, "│", *likeliest])
        n_columns = max(map(len, rows))
        filled = [row + [""] * (n_columns - len(row)) for row in rows]
        table = aligned(filled, "rll" + "lr" * ((n_columns - 3) // 2), indent="")
        yield from (translation.text, "", *table)


class Pharaoh(TextLines):
    """Source words, target words and links."""

    def translations(self, _first: int, _texts: Sequence[str], translations: Sequence[Translation]) -> Iterator[str]:
        """Yield a line for each translation."""
        for words in self.inspector.words(translations):
            yield "\t".join([" ".join(words.source), " ".join(words.target), pharaoh(words.links)])


class JsonLines(TextLines):
    """A JSON object for each text; what is costly, only on request."""

    def translations(self, _first: int, texts: Sequence[str], translations: Sequence[Translation]) -> Iterator[str]:
        """Yield a line for each translation."""
        yield from map(_json_line, self._records(texts, translations))

    def scores(self, pairs: Sequence[tuple[str, str]], scores: Sequence[Score]) -> Iterator[str]:
        """Yield a line for each score."""
        for (source, given), score in zip(pairs, scores, strict=True):
            yield _json_line(
                {
                    "source": source,
                    "translation": given,
                    "log_prob": round(score.log_prob, _DIGITS),
                    "perplexity": round(score.perplexity, _DIGITS),
                    "tokens": score.tokens,
                    "log_probs": _rounded(score.log_probs),
                    "lost_tokens": score.lost_tokens,
                    "unknown_tokens": score.n_unknown,
                }
            )

    def alternatives(self, text: str, translation: Translation, positions: Sequence[Position]) -> Iterator[str]:
        """Yield a line for the translation, with the likeliest tokens at each position."""
        (record,) = self._records([text], [translation])
        record["alternatives"] = [
            {
                "position": position.number,
                "token": position.token,
                "likeliest": [{"token": token, "log_prob": round(p, _DIGITS)} for token, p in position.likeliest],
            }
            for position in positions
        ]
        yield _json_line(record)

    def _records(self, texts: Sequence[str], translations: Sequence[Translation]) -> list[dict[str, Any]]:
        """Return the fields of each translation."""
        records = []
        for text, translation in zip(texts, translations, strict=True):
            record: dict[str, Any] = {
                "source": text,
                **_candidate(translation.candidates[0]),
                **translation.remarks,
            }
            if self.options.glossary is not None:
                record["terms"] = [{"term": term, "appears": is_there} for term, is_there in translation.terms]
            if self.options.n_best > 1:
                record["n_best"] = [*map(_candidate, translation.candidates)]
            if len(sentences := [piece for piece in translation.pieces if piece.source]) > 1:
                record["sentences"] = [
                    {"source": piece.source, "candidates": [*map(_candidate, piece.candidates)]} for piece in sentences
                ]
            records.append(record)
        if self.options.log_probs:
            for record, log_probs in zip(records, self.inspector.log_probs(translations), strict=True):
                record["log_probs"] = _rounded(log_probs)
        if self.options.alignment:
            tokens, alignments = self.inspector.source_tokens(translations), self.inspector.alignments(translations)
            for record, source, links in zip(records, tokens, alignments, strict=True):
                record |= {"source_tokens": source, "alignment": pharaoh(links)}
        return records


_WRITER = {"text": TextLines, "jsonl": JsonLines, "pharaoh": Pharaoh}


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


class SourceText(NamedTuple):
    """The text that a run has learned to read."""

    language: str
    tokenized: bool = False  # spaces separate all words and marks

    def notices(self, texts: Sequence[str]) -> list[str]:
        """Return what is to be said about texts of another kind."""
        said = []
        try:
            detected = detect("\n".join(texts), ["en", self.language])
            if detected is None or detected.language != self.language:
                refuse_other_language(texts, self.language, "the text", "--run names a run that reads it")
        except ValueError as error:  # a list of names may be in another script: it is translated all the same
            said.append(str(error))
        if self.tokenized and looks_untokenized(texts):
            said.append(
                "this run learned from text where spaces separate all words and marks: text of that kind, perhaps in "
                "lower case, is translated better"
            )
        return said


@dataclass
class Presenter:
    """Yields the output for chunks of lines, and logs notices about them."""

    inspector: Inspector
    options: Options
    log: Callable[[str], object]  # called with notices for the reader, which name their lines
    source_text: SourceText
    is_known: bool = False  # what kind of text it is
    n_notices: Counter[str] = field(default_factory=Counter)  # by their topics
    terms: Counter[tuple[str, bool]] = field(default_factory=Counter)  # of the glossary; whether translations have them
    n_with_terms: int = 0  # lines
    n_scored: int = 0  # translations so far
    n_tokens: int = 0
    log_prob: float = 0.0

    def __post_init__(self) -> None:
        self._writer = _WRITER[self.options.format](self.options, self.inspector)

    def translations(self, first: int, texts: Sequence[str], on_progress: Progress = lambda _: None) -> Iterator[str]:
        """Yield the translations of texts, of which the first has the number `first`."""
        if not self.is_known and count_letters("".join(texts))[0]:  # the first lines may be numbers, and tell nothing
            self.is_known = True
            self._remark(texts)
        translations = self._translate(texts, on_progress, first)
        for number, translation in enumerate(translations, first):
            self._notify(number, notices(translation))
        yield from self._writer.translations(first, texts, translations)

    def translated_file(self, file: Subtitles | Catalog, on_progress: Progress) -> str:
        """Return a file with its texts translated, and all else as it was; notices have the numbers of their lines."""
        texts = [text.text for text in file.texts]
        self._remark(texts)
        translations, has_tags = self._translate(texts, on_progress), any(text.has_tags for text in file.texts)
        links = self.inspector.span_links(texts, translations) if has_tags else [()] * len(texts)
        filled = file.filled([*zip((translation.text for translation in translations), links, strict=True)])
        for number, translation, text in zip(file.numbers, translations, file.texts, strict=True):
            lost = {"lost": f"{file.lost} {' '.join(sorted(text.lost))}"} if text.lost else {}
            self._notify(number, notices(translation) | lost)
        return filled

    def alternatives(self, text: str, k: int) -> Iterator[str]:
        """Yield the translation of a text and the k likeliest tokens at each position, or only after the prefix."""
        (translation,) = self._translate([text])
        positions = self.inspector.positions(translation, k, self.options.prefix)
        self._notify(1, notices(translation))
        yield from self._writer.alternatives(text, translation, positions)

    def scores(
        self, first: int, pairs: Sequence[tuple[str, str]], on_progress: Progress = lambda _: None
    ) -> Iterator[str]:
        """Yield the score of the second of each pair as a translation of the first."""
        scores = self.inspector.scores([source for source, _ in pairs], [given for _, given in pairs])
        for number, score in enumerate(scores, first):
            self._notify(number, score_notices(score))
            self.log_prob += score.log_prob
            self.n_tokens += len(score.tokens)
        yield from self._writer.scores(pairs, scores)
        self.n_scored += len(pairs)
        on_progress(len(pairs))

    def total(self) -> str:
        """Return a summary of all translations scored so far."""
        all_of_it = perplexity(self.log_prob, self.n_tokens)
        return f"{self.n_scored:,} lines, {self.n_tokens:,} tokens with </s>, perplexity {all_of_it:.2f}"

    def conclude(self, hint: str = "; --format jsonl tells which") -> None:
        """Log how many notices of each topic were left out, and how many terms of the glossary there are."""
        for topic, count in self.n_notices.items():
            if (left_out := count - _MAX_NOTICES) > 0:
                self.log(f"{left_out:,} more line{'s' * (left_out > 1)}: {topic}{hint}")
        if self.options.glossary is not None:
            lost = {term: n for (term, is_there), n in self.terms.most_common() if not is_there}
            shown = ", ".join(f"{term} ({n})" if n > 1 else term for term, n in [*lost.items()][:_MAX_NOTICES])
            n, missing = self.terms.total(), f"; missing: {shown}" if lost else ""
            n_there, lines = n - sum(lost.values()), f"{self.n_with_terms:,} line{'s' * (self.n_with_terms != 1)}"
            self.log(f"glossary: {n_there:,} of {n:,} terms appear in {lines}{missing}")

    def _remark(self, texts: Sequence[str]) -> None:
        for notice in self.source_text.notices(texts):
            self.log(notice)

    def _notify(self, number: int, topics: Mapping[str, str]) -> None:
        """Log the notices about the line of this number, but only the first of each topic."""
        for topic, text in topics.items():
            self.n_notices[topic] += 1
            if self.n_notices[topic] <= _MAX_NOTICES:
                self.log(f"line {number}: {text}")

    def _translate(
        self, texts: Sequence[str], on_progress: Progress = lambda _: None, first: int = 1
    ) -> list[Translation]:
        prefixes = [self.options.prefix] * len(texts) if self.options.prefix else None
        translations = self.inspector.translator.translate(texts, on_progress, self.options.n_best, prefixes, first)
        for translation in translations:
            self.terms.update(translation.terms)
            self.n_with_terms += bool(translation.terms)
        return translations
