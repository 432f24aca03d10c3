"""Where one sentence ends and the next begins, and how sentences of a language are joined."""

import re

from utils.text.script import UNSPACED, primary_language

_END = re.compile(r"(?<=[。！？])(?![。！？」』）])|(?<=[.!?])\s+")


def split_sentences(text: str) -> list[str]:
    """Cut behind 。！？, and behind .!? where a space follows; quotation marks that close stay with their sentence."""
    return [sentence for part in _END.split(text) if (sentence := part.strip())]


def join_sentences(sentences: list[str], language: str) -> str:
    """One text again: by spaces, or by nothing where the language has none."""
    return ("" if primary_language(language) in UNSPACED else " ").join(sentences)
