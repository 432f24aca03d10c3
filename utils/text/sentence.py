"""Splitting of text into sentences, and joining of sentences as their language does."""

import re

from utils.text.script import UNSPACED, primary_language

_END = re.compile(r"(?<=[。！？])(?![。！？」』）])|(?<=[.!?])\s+")


def split_sentences(text: str) -> list[str]:
    """Split after 。！？, and after .!? where a space follows; closing quotation marks stay with their sentence."""
    return [sentence for part in _END.split(text) if (sentence := part.strip())]


def join_sentences(sentences: list[str], language: str) -> str:
    """Join sentences with spaces, or with nothing where the language has none."""
    return ("" if primary_language(language) in UNSPACED else " ").join(sentences)
