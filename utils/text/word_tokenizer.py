"""A tokenizer of whole words, for text that is already split by spaces."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NoReturn

from const.token import BOS_ID, EOS_ID, PAD_ID, SPECIAL_TOKENS, UNK_ID
from utils.file import read_json, write_text

SUFFIX = ".json"


class WordTokenizer:
    """A vocabulary of words, most frequent first.

    Args:
        words: the vocabulary after the special tokens.
        lowercase: whether text is lower-cased before it is looked up.
    """

    def __init__(self, words: Sequence[str], lowercase: bool) -> None:
        self._words = [*SPECIAL_TOKENS, *words]
        self._lowercase = lowercase
        self._ids = {word: i for i, word in enumerate(self._words) if i >= len(SPECIAL_TOKENS)}

    @classmethod
    def train(cls, lines: Iterable[str], min_freq: int, lowercase: bool) -> "WordTokenizer":
        """Keep words that occur at least `min_freq` times; equally frequent ones in order of appearance."""
        counts = Counter(word for line in lines for word in (line.lower() if lowercase else line).split())
        for special in SPECIAL_TOKENS:
            counts.pop(special, None)
        return cls([word for word, count in counts.most_common() if count >= min_freq], lowercase)

    @classmethod
    def load(cls, path: Path) -> "WordTokenizer":
        """Read what `save` wrote.

        Raises:
            ValueError: the file is damaged.
        """
        saved = read_json(path)
        try:
            return cls(saved["words"], saved["lowercase"])
        except (TypeError, LookupError) as error:
            raise ValueError(f"{path} is damaged (words or lowercase is missing): copy it again") from error

    def save(self, path: Path) -> None:
        """Write the words as JSON."""
        saved = {"lowercase": self._lowercase, "words": self._words[len(SPECIAL_TOKENS) :]}
        write_text(path.with_suffix(SUFFIX), json.dumps(saved, ensure_ascii=False, indent=0) + "\n")

    def __len__(self) -> int:
        """Size of the vocabulary."""
        return len(self._words)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text's words; an unknown word is <unk>."""
        return [
            [self._ids.get(word, UNK_ID) for word in (text.lower() if self._lowercase else text).split()]
            for text in texts
        ]

    def sample(self, texts: Sequence[str], rate: float, seed: int) -> NoReturn:  # noqa: ARG002 (the protocol has it)
        """Refuse to sample: words are not split into pieces."""
        raise ValueError(f"tokenizer.sampling={rate} splits words into pieces, kind=word keeps them whole: set it to 0")

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Join the words by spaces."""
        silent = (PAD_ID, BOS_ID, EOS_ID)
        return [" ".join(self._words[i] for i in sequence if i not in silent) for sequence in ids]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the words."""
        return [self._words[i] for i in ids]
