"""Formatting of translations: lines for people and for common MT tools, JSON for programs."""

import json
import math
from collections.abc import Sequence

from utils.search.alignment import Links, pharaoh
from utils.search.inspection import Judgement, Position
from utils.search.translator import Candidate, Translation
from utils.search.word_alignment import WordAlignment
from utils.terminal.notice import Notice
from utils.terminal.plain_text import aligned

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
