"""Plain text for a run that learned from text where spaces separate all words and marks, and the way back."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from config.data import primary_language
from utils.file import read_json, write_json
from utils.text.language import UNSPACED
from utils.text.tokenizer import Tokenizer, TokenizerPair

if TYPE_CHECKING:  # slow to import
    from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

WORDS = "tokenizer_words.json"  # in a run that learned from such text
_ENTITY = re.compile(r"&(?:apos|quot|amp|lt|gt|#91|#93|#124);")  # how Moses writes ' " & < > [ ] |
_CURLED = re.compile("[‘’‚“”„«»]")


@dataclass(frozen=True)
class Words:
    """How the words of one language are separated: as Moses does or, where text has no spaces, as the training text is.

    Args:
        language: code of the language.
        counts: how often each word of the training text occurs; empty where text has spaces.
        lowercase: the training text has no capital letters.
        escaped: the training text has marks as Moses writes them, such as &apos; for '.
        curled: the training text has typographic quotation marks, which Moses can turn into ' and ".
    """

    language: str
    counts: dict[str, int]
    lowercase: bool
    escaped: bool
    curled: bool

    @classmethod
    def learn(cls, language: str, lines: Iterable[str]) -> "Words":
        """Learn from tokenized text."""
        counts: Counter[str] = Counter()
        for line in lines:
            counts.update(line.split())
        lowercase = all(word == word.lower() for word in counts)
        kept = dict(counts) if primary_language(language) in UNSPACED else {}
        return cls(language, kept, lowercase, *(any(map(marks.search, counts)) for marks in (_ENTITY, _CURLED)))

    def split(self, text: str) -> str:
        """Separate all words and marks of a plain text by spaces."""
        text = text.lower() if self.lowercase else text
        if self.counts:
            return " ".join(word for part in text.split() for word in self._likeliest(part))
        tokenizer, _, normalizer = self._moses
        text = text if self.curled else normalizer.normalize(text)
        return str(tokenizer.tokenize(text, escape=self.escaped, return_str=True))

    def join(self, text: str) -> str:
        """Return what `split` would separate, each sentence with a capital letter if all are small."""
        if primary_language(self.language) in UNSPACED:  # words of another script keep their spaces
            return re.sub(r"(?<![!-~]) | (?![!-~])", "", text)
        text = self._moses[1].detokenize(text.split(), unescape=self.escaped)
        return re.sub(r"(^|[.!?] )(\w)", lambda begin: begin[1] + begin[2].upper(), text) if self.lowercase else text

    @cached_property
    def _moses(self) -> "tuple[MosesTokenizer, MosesDetokenizer, MosesPunctNormalizer]":
        from sacremoses import MosesDetokenizer, MosesPunctNormalizer, MosesTokenizer

        code = primary_language(self.language)
        return MosesTokenizer(code), MosesDetokenizer(code), MosesPunctNormalizer(code)

    @cached_property
    def _log_probs(self) -> dict[str, float]:
        total = sum(self.counts.values())
        return {word: math.log(count / total) for word, count in self.counts.items()}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.counts))

    def _likeliest(self, text: str) -> list[str]:
        """Return the likeliest words of a text by their frequencies (Viterbi); unknown characters stay together."""
        unseen = -math.log(sum(self.counts.values()))  # an unknown character is as likely as a word seen once
        best, begins = [0.0], [0]  # of the text before each place: its log-probability, where its last word begins
        for end in range(1, len(text) + 1):
            known = [
                (best[begin] + self._log_probs[word], begin)
                for begin in range(max(0, end - self._longest), end)
                if (word := text[begin:end]) in self._log_probs
            ]
            log_prob, begin = max([*known, (best[end - 1] + unseen, end - 1)])
            best.append(log_prob)
            begins.append(begin)
        words, end = list[str](), len(text)
        while end:
            words.append(text[begins[end] : end])
            end = begins[end]
        together = groupby(reversed(words), key=lambda word: word in self.counts)
        return [part for is_known, parts in together for part in (parts if is_known else ["".join(parts)])]


class WordPair(NamedTuple):
    """What separates the words of source and target."""

    src: Words
    tgt: Words

    def save(self, folder: Path) -> None:
        """Write both into the folder of a run."""
        write_json(folder / WORDS, [asdict(words) for words in self], indent=0)

    @classmethod
    def load(cls, folder: Path) -> "WordPair":
        """Read what `save` wrote."""
        try:
            src, tgt = (Words(**saved) for saved in read_json(folder / WORDS))
        except (TypeError, ValueError) as error:
            raise ValueError(f"{folder / WORDS} is damaged: copy it again") from error
        return cls(src, tgt)


class PlainText:
    """A tokenizer that takes and returns plain text, around one that was learned from words separated by spaces."""

    def __init__(self, tokenizer: Tokenizer, words: Words) -> None:
        self._tokenizer, self._words = tokenizer, words
        self.save, self.tokens, self.log_prob = tokenizer.save, tokenizer.tokens, tokenizer.log_prob
        self.tags: Sequence[str] = getattr(tokenizer, "tags", ())

    def __len__(self) -> int:
        return len(self._tokenizer)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each plain text."""
        return self._tokenizer.encode([*map(self._words.split, texts)])

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the plain text of each sequence."""
        return [*map(self._words.join, self._tokenizer.decode(ids))]

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the pieces of each plain text."""
        return self._tokenizer.split([*map(self._words.split, texts)])


def plain_text(tokenizers: TokenizerPair, folder: Path) -> TokenizerPair:
    """Return tokenizers of plain text for a run; what it learned from may have been plain text anyway."""
    if not (folder / WORDS).is_file():
        return tokenizers
    words = WordPair.load(folder)
    return TokenizerPair(PlainText(tokenizers.src, words.src), PlainText(tokenizers.tgt, words.tgt))
