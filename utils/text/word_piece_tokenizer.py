"""WordPiece: words split into the longest pieces that fit, as in BERT, Devlin et al. 2019; Schuster & Nakajima 2012."""

import unicodedata
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from utils.file import write_lines

SUFFIX = ".txt"
PAD, UNK, CLS, SEP, MASK = "[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"
_INSIDE = "##"  # marks a piece that does not begin a word
_LONGEST_WORD = 100  # letters; longer words are unknown, as in the tokenizers of published models

# blocks of Chinese characters, each of which is a word; kana and hangul are treated like an alphabet
_CHINESE = (
    (0x3400, 0x4DBF),
    (0x4E00, 0x9FFF),
    (0xF900, 0xFAFF),
    (0x20000, 0x2A6DF),
    (0x2A700, 0x2CEAF),
    (0x2F800, 0x2FA1F),
)


class _Characters(dict[int, str]):
    """What each character becomes before text is split by spaces, computed when it first occurs."""

    def __init__(self, lowercase: bool) -> None:
        self._lowercase = lowercase

    def __missing__(self, code: int) -> str:
        self[code] = self._become(chr(code))
        return self[code]

    def _become(self, char: str) -> str:
        category = unicodedata.category(char)
        if char in "\t\n\r":
            return " "
        if category in ("Cc", "Cf", "Co", "Cs") or char == "\ufffd" or (self._lowercase and category == "Mn"):
            return ""
        if char.isspace():
            return " "
        # all of ASCII that is neither letter nor digit counts as punctuation, `$+<=>^`|~` too
        if category[0] == "P" or (char.isascii() and not char.isalnum()):
            return f" {char} "
        if any(first <= ord(char) <= last for first, last in _CHINESE):
            return f" {char} "
        return char.lower() if self._lowercase else char


class WordPieceTokenizer:
    """BERT's tokenizer: split by spaces, punctuation and Chinese characters, then each word into known pieces.

    Its special tokens are wherever its vocabulary has them; of these, encoding only ever returns [UNK].

    Args:
        vocabulary: the pieces in the order of their ids; `##` before those that continue a word.
        lowercase: whether text is lower-cased, and loses its accents, before it is looked up.

    Raises:
        ValueError: a special token is missing.
    """

    def __init__(self, vocabulary: Sequence[str], lowercase: bool) -> None:
        self._pieces = list(vocabulary)
        self._ids = {piece: i for i, piece in enumerate(self._pieces)}
        self._lowercase = lowercase
        self._characters = _Characters(lowercase)
        self._longest = max(map(len, self._pieces), default=0)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = map(
            self._special, (PAD, UNK, CLS, SEP, MASK)
        )

    def _special(self, token: str) -> int:
        if token not in self._ids:
            raise ValueError(f"{token} is not among the {len(self)} pieces of the vocabulary: BERT needs it")
        return self._ids[token]

    @classmethod
    def load(cls, path: Path, lowercase: bool) -> "WordPieceTokenizer":
        """Read a vocab.txt, one piece per line.

        Raises:
            ValueError: the file is not UTF-8, or a special token is missing.
        """
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path} is not UTF-8 text ({error})") from error
        # not splitlines, which also splits at characters that a vocabulary may have as pieces
        return cls(text.removesuffix("\n").split("\n"), lowercase)

    def save(self, path: Path) -> None:
        """Write the vocabulary, one piece per line."""
        write_lines(path.with_suffix(SUFFIX), self._pieces)

    def __len__(self) -> int:
        """Size of the vocabulary."""
        return len(self._pieces)

    def words(self, text: str) -> list[str]:
        """Return the words, before they are split into pieces."""
        text = unicodedata.normalize("NFD", text) if self._lowercase else text
        return text.translate(self._characters).split()

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return ids of each text, without [CLS] and [SEP]; a word that known pieces cannot make up is one [UNK]."""
        return [[i for word in self.words(text) for i in self._cut(word)] for text in texts]

    def _cut(self, word: str) -> list[int]:
        """Split a word from left to right, each time taking the longest piece that fits."""
        if len(word) > _LONGEST_WORD:
            return [self.unk_id]
        ids: list[int] = []
        start = 0
        while start < len(word):
            mark = _INSIDE if start else ""
            for end in range(min(len(word), start + self._longest), start, -1):
                if (found := self._ids.get(mark + word[start:end])) is not None:
                    ids.append(found)
                    start = end
                    break
            else:
                return [self.unk_id]
        return ids

    def sample(self, texts: Sequence[str], rate: float, seed: int) -> NoReturn:  # noqa: ARG002 (the protocol has it)
        """Refuse to sample: there is only one way to split a word, each piece being the longest that fits."""
        raise ValueError(
            f"tokenizer.sampling={rate} splits words at random, WordPiece always into the longest pieces: set it to 0"
        )

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Join words by spaces; [PAD], [CLS] and [SEP] are left out."""
        silent = (self.pad_id, self.cls_id, self.sep_id)
        pieces = ([self._pieces[i] for i in sequence if i not in silent] for sequence in ids)
        return [" ".join(sequence).replace(f" {_INSIDE}", "") for sequence in pieces]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces."""
        return [self._pieces[i] for i in ids]
