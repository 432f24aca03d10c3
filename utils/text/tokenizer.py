"""Tokenizers: SentencePiece's sub-words or whole words, one for both languages or one each."""

import io
import math
import random
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from copy import copy
from functools import cached_property
from itertools import chain, islice
from pathlib import Path
from threading import Thread
from typing import NamedTuple, Protocol

import sentencepiece

from config.data import TokenizerConfig
from const.token import BOS, BOS_ID, EOS, EOS_ID, PAD, PAD_ID, SPECIAL_TOKENS, UNK, UNK_ID
from utils.file import atomic_file, read_json, write_json, write_text
from utils.text.form import composed, known_characters, known_form
from utils.text.sampling import BpeSampler, ScoredPiece, UnigramSampler


class Vocabulary(Protocol):
    """What gives meaning to a network's ids: tokenizers, label names."""

    def save(self, folder: Path) -> None:
        """Write the vocabulary into a folder."""


class Tokenizer(Protocol):
    """Text to ids and back; ids 0..3 are <pad> <unk> <s> </s>, of which encoding only ever returns <unk>."""

    def __len__(self) -> int:
        """Size of the vocabulary, special tokens included."""

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, without <s> and </s>; unknown characters are read in a form that is known."""

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence; <pad>, <s> and </s> are left out."""

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the individual pieces, special tokens included, for people to look at."""

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the pieces that `encode` gives the ids of; unknown ones are shown as they stand in the text."""

    def log_prob(self, i: int) -> float:
        """Return the log-probability of a token in the training text, as far as the vocabulary tells."""

    def save(self, path: Path) -> None:
        """Write everything that `load` needs to this path, its suffix replaced by the tokenizer's own."""


def every_token(tokenizer: Tokenizer) -> list[str]:
    """Return the vocabulary, in the order of the ids."""
    return tokenizer.tokens(range(len(tokenizer)))


def id_of_each(tokenizer: Tokenizer) -> dict[str, int]:
    """Return the id of each token, as `tokens` shows it."""
    return {token: i for i, token in enumerate(every_token(tokenizer))}


# Sub-words: SentencePiece (Kudo & Richardson 2018) as a unigram model (Kudo 2018) or BPE (Sennrich et al. 2016).

_PIECES, _WORDS = ".model", ".json"  # suffixes of files
_APOSTROPHE = re.compile("(?<=[A-Za-z])’(?=[A-Za-z])")
_WORD = re.compile("▁?[^▁]+|▁")  # pieces have a ▁ only at their beginning
# Of KFTT's 77 million these take 51 s of a core (EPYC 25/17), and 8,000 pieces from them split its dev and test text
# into no more tokens than those from three times as many, which take three times as long and 25 bytes of memory each.
_MAX_TRAINING_CHARACTERS = 10_000_000
_LONGEST = 4096  # characters of a line; SentencePiece leaves out what is longer
_PART = re.compile(rf"(?s).{{1,{_LONGEST}}}(?=\s|\Z)|.{{1,{_LONGEST}}}")  # a line, or parts of a longer one
_WORTH_THREADS = 1000  # texts


def _interruptible(function: Callable[..., object], **options: object) -> None:
    """Call a function that is not Python's in a thread, so that Ctrl-C and SIGTERM need not wait for its end."""
    done = Future[None]()

    def call() -> None:
        try:
            function(**options)
            done.set_result(None)
        except BaseException as error:  # raised again by whoever waits
            done.set_exception(error)

    Thread(target=call, daemon=True).start()
    done.result()


class SentencePieceTokenizer:
    """A trained SentencePiece model, given as its bytes; texts begin with `tags`, none at first."""

    tags: Sequence[str] = ()

    def __init__(self, model: bytes) -> None:
        self.model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._samplers: dict[float, BpeSampler | UnigramSampler] = {}
        self._characters = known_characters(every_token(self))

    @classmethod
    def train(
        cls,
        config: TokenizerConfig,
        texts: Sequence[Iterable[str]],
        tags: Sequence[str] = (),
        symbols: Sequence[str] = (),
    ) -> "SentencePieceTokenizer":
        """Learn pieces from lines, which are read twice; of very large texts from every k-th one.

        Tags are tokens that no text is encoded to, symbols are characters that are always tokens of their own.
        """
        writer, n_lines, n_characters = io.BytesIO(), 0, 0
        for line in chain(*texts):
            n_lines, n_characters = n_lines + 1, n_characters + len(line)
        stride = -(-n_characters // _MAX_TRAINING_CHARACTERS) or 1
        lines = map(composed, islice(chain(*texts), 0, None, stride))
        try:
            _interruptible(
                sentencepiece.SentencePieceTrainer.train,
                sentence_iterator=chain.from_iterable(map(_PART.findall, lines)),
                model_writer=writer,
                model_type=config.kind,
                vocab_size=config.vocab_size,
                character_coverage=config.character_coverage,
                normalization_rule_name=config.normalization,
                pad_id=PAD_ID,
                unk_id=UNK_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                pad_piece=PAD,
                unk_piece=UNK,
                bos_piece=BOS,
                eos_piece=EOS,
                control_symbols=list(tags),
                user_defined_symbols=list(symbols),
                hard_vocab_limit=config.kind == "bpe",  # a unigram model may end up with fewer; BPE counts its merges
                max_sentence_length=4 * _LONGEST,
                minloglevel=2,
            )
        except RuntimeError as error:
            reason = str(error).strip().rsplit("] ", 1)[-1]
            raise ValueError(
                f"tokenizer.vocab_size={config.vocab_size} does not fit {n_lines} lines of training text: {reason}"
            ) from error
        return cls(writer.getvalue())

    @classmethod
    def load(cls, path: Path) -> "SentencePieceTokenizer":
        """Read what `save` wrote."""
        model = path.read_bytes()
        with suppress(RuntimeError):  # its message only names SentencePiece's own source file
            if model:  # SentencePiece would read an empty file as a model without pieces
                return cls(model)
        raise ValueError(f"{path} is damaged: copy it again")

    def save(self, path: Path) -> None:
        """Write the model; any program that uses SentencePiece can read it."""
        with atomic_file(path.with_suffix(_PIECES)) as draft:
            draft.write_bytes(self.model)

    def __len__(self) -> int:
        return int(self._processor.get_piece_size())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, using all cores for many texts."""
        try:
            encoded = self._processor.encode(self._known(texts), num_threads=-1 if len(texts) > _WORTH_THREADS else 1)
        except TypeError:  # raised, without a reason, for the surrogates that Python substitutes for bytes not in UTF-8
            odd = next(text for text in texts if text != text.encode("utf-8", "replace").decode("utf-8"))
            raise ValueError(f"{odd!r} is not UTF-8: give the text in UTF-8") from None
        return self._tagged(encoded)

    def _known(self, texts: Sequence[str]) -> list[str]:
        if "'" in self._characters:  # of texts with both, most have this one within words: don’t
            texts = [_APOSTROPHE.sub("'", text) for text in texts]
        return [known_form(text, self._characters) for text in texts]

    def _tagged(self, encoded: list[list[int]]) -> list[list[int]]:  # an empty text stays empty
        tags = [self._processor.piece_to_id(tag) for tag in self.tags]
        return [[*tags, *ids] if ids else ids for ids in encoded] if tags else encoded

    def tagged(self, tags: Sequence[str]) -> "SentencePieceTokenizer":
        """Return a tokenizer with the same model, whose texts begin with these tags."""
        other = copy(self)
        other.tags = tags
        return other

    @cached_property
    def known_tags(self) -> list[str]:
        """All tags of the vocabulary; whatever a text says, it is not encoded to them."""
        return [piece for i, piece in enumerate(every_token(self)) if i > EOS_ID and self._processor.is_control(i)]

    def sample(self, texts: Sequence[str], rate: float, seed: int) -> list[list[int]]:
        """Return ids of each text, segmented at random as a function of the arguments (`TokenizerConfig.sampling`)."""
        draw, sampler = random.Random(seed).random, self._sampler(rate)
        sampled = []
        for text in self._processor.normalize(self._known(texts)):
            ids = [i for word in _WORD.findall(text) for i in sampler(word, draw)]
            # adjacent unknown characters are one token, as in `encode`
            sampled.append([i for i, before in zip(ids, [None, *ids], strict=False) if not i == before == UNK_ID])
        return self._tagged(sampled)

    @cached_property
    def pieces(self) -> dict[str, ScoredPiece]:
        """The pieces that text is encoded to: all but special tokens and tags."""
        ids = [i for i in range(len(SPECIAL_TOKENS), len(self)) if not self._processor.is_control(i)]
        return {self._processor.id_to_piece(i): ScoredPiece(i, self._processor.get_score(i)) for i in ids}

    def log_prob(self, i: int) -> float:
        """Return the score of a unigram model's piece; those of BPE count as equally likely."""
        return -math.log(len(self)) if self.is_bpe else self._processor.get_score(i)

    @cached_property
    def is_bpe(self) -> bool:
        """Whether the scores are BPE's numbers of merges; a unigram model's log-probabilities are not whole numbers."""
        return all(piece.score.is_integer() for piece in self.pieces.values())

    @property
    def keeps_forms(self) -> bool:
        """Whether its normalization is identity; every other rule unifies full-width letters with the usual ones."""
        return "Ａ" in self._processor.normalize("Ａ")

    def _sampler(self, rate: float) -> BpeSampler | UnigramSampler:
        """Return the sampler of a rate, made only once since it caches words."""
        if rate not in self._samplers:
            self._samplers[rate] = (BpeSampler if self.is_bpe else UnigramSampler)(self.pieces, rate)
        return self._samplers[rate]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence; an unknown piece becomes ⁇."""
        return self._processor.decode([list(sequence) for sequence in ids]) if len(ids) else []

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces; ▁ marks the beginning of a word."""
        return [self._processor.id_to_piece(int(i)) for i in ids]

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the pieces of each text; unknown ones are shown as they stand in the text."""
        split = self._processor.encode(self._known(texts), out_type=str)
        return [[*self.tags, *pieces] if pieces else pieces for pieces in split] if self.tags else split


# A tokenizer of whole words, for text that is already split by spaces.


class WordTokenizer:
    """A vocabulary of words, most frequent first, in which text is looked up, lower-cased or as it is."""

    def __init__(self, words: Sequence[str], lowercase: bool) -> None:
        self._words = [*SPECIAL_TOKENS, *words]
        self._lowercase = lowercase
        self._ids = {word: i for i, word in enumerate(self._words) if i >= len(SPECIAL_TOKENS)}
        self._characters = known_characters(["\t", *self._ids])

    @classmethod
    def train(cls, lines: Iterable[str], min_freq: int, lowercase: bool) -> "WordTokenizer":
        """Keep words that occur at least `min_freq` times; equally frequent ones in order of appearance."""
        lines = map(composed, lines)
        counts = Counter(word for line in lines for word in (line.lower() if lowercase else line).split())
        for special in SPECIAL_TOKENS:
            counts.pop(special, None)
        return cls([word for word, count in counts.most_common() if count >= min_freq], lowercase)

    @classmethod
    def load(cls, path: Path) -> "WordTokenizer":
        """Read what `save` wrote."""
        saved = read_json(path)
        try:
            return cls(saved["words"], saved["lowercase"])
        except (TypeError, LookupError) as error:
            raise ValueError(f"{path} is damaged (words or lowercase is missing): copy it again") from error

    def save(self, path: Path) -> None:
        """Write the words as JSON."""
        saved = {"lowercase": self._lowercase, "words": self._words[len(SPECIAL_TOKENS) :]}
        write_json(path.with_suffix(_WORDS), saved, indent=0)

    def __len__(self) -> int:
        return len(self._words)

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text's words; an unknown word is <unk>."""
        return [
            [self._ids.get(word, UNK_ID) for word in known_form(text, self._characters).split()]
            for text in (map(str.lower, texts) if self._lowercase else texts)
        ]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Join the words by spaces."""
        silent = (PAD_ID, BOS_ID, EOS_ID)
        return [" ".join(self._words[i] for i in sequence if i not in silent) for sequence in ids]

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the words."""
        return [self._words[i] for i in ids]

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        """Return the words of each text."""
        return [known_form(text, self._characters).split() for text in texts]

    def log_prob(self, i: int) -> float:  # noqa: ARG002 (the protocol has it)
        """Return the same for all words, whose frequencies are not kept."""
        return -math.log(len(self))


# The tokenizers of source and target: a joint one, or one each.

_TAGS = "tokenizer_tag.txt"  # what every source begins with, separated by spaces
_LANGUAGE = "<2"  # begins the tag of a language, and no other


_UNREAD = -20.0  # log-probability of an unknown character: less than that of any piece


class TokenizerPair(NamedTuple):
    """Source and target tokenizer; the same object twice when joint, but for the source's tags."""

    src: Tokenizer
    tgt: Tokenizer

    @property
    def tags(self) -> Sequence[str]:
        """What each source begins with: the tag of a language, then that of a text, where there are any."""
        return getattr(self.src, "tags", ())

    @property
    def text_tags(self) -> list[str]:
        """The tags of texts that the vocabulary has, as settings say them: `bt` for <bt>."""
        known = self.src.known_tags if isinstance(self.src, SentencePieceTokenizer) else []
        return [tag[1:-1] for tag in known if not tag.startswith(_LANGUAGE)]

    @property
    def is_joint(self) -> bool:
        """Whether both sides have one vocabulary."""
        models = [side.model for side in self if isinstance(side, SentencePieceTokenizer)]
        return self.src is self.tgt or (len(models) == len(self) and models[0] is models[1])

    def log_prob(self, text: str, share: float = 1.0) -> float:
        """Return the log-probability of a source, in nats, by its tokens alone: comparable between vocabularies.

        `share` is that of the text from which the vocabulary was learned which is in the language of the source.
        """
        (ids,), (tokens,), begin = self.src.encode([text]), self.src.split([text]), len(self.tags)
        read = zip(ids[begin:], tokens[begin:], strict=False)  # a known form may have more words
        return sum(_UNREAD * len(token) if i == UNK_ID else self.src.log_prob(i) - math.log(share) for i, token in read)

    def into(self, language: str) -> "TokenizerPair":
        """Return a pair whose sources have the tag of the language to translate into."""
        return self._tagged([language_tag(language), *(tag for tag in self.tags if not tag.startswith(_LANGUAGE))])

    def with_tag(self, tag: str | None) -> "TokenizerPair":
        """Return a pair whose sources have this tag of a text beside that of a language; None, "": none."""
        if tag and tag not in self.text_tags:
            known = ", ".join(self.text_tags) or "no tag"
            raise ValueError(
                f"tag={tag}, but the vocabulary knows {known}: give one that it knows or none, or train a new run, "
                "whose vocabulary is learned with it"
            )
        language = [token for token in self.tags if token.startswith(_LANGUAGE)]
        return self._tagged([*language, f"<{tag}>"] if tag else language)

    def _tagged(self, tags: Sequence[str]) -> "TokenizerPair":
        if not tags and not self.tags:
            return self
        if not isinstance(self.src, SentencePieceTokenizer) or not {*tags} <= {*self.src.known_tags}:
            raise ValueError(f"the vocabulary has no {tags[0]}: train one with --tokenizer.tag true in this direction")
        return TokenizerPair(self.src.tagged(tags), self.tgt)

    def save(self, folder: Path) -> None:
        """Write `tokenizer.*`, or `tokenizer_src.*` and `tokenizer_tgt.*`, into a folder."""
        if self.tags:
            write_text(folder / _TAGS, " ".join(self.tags))
        if self.is_joint:
            self.tgt.save(folder / "tokenizer")
        else:
            self.src.save(folder / "tokenizer_src")
            self.tgt.save(folder / "tokenizer_tgt")


def language_tag(language: str) -> str:
    """Return the token that asks for a translation into this language."""
    return f"{_LANGUAGE}{language}>"


def train_tokenizers(
    config: TokenizerConfig,
    src: Iterable[str],
    tgt: Iterable[str] = (),
    languages: tuple[str, str] = ("", ""),
    text_tags: Sequence[str] = (),
    symbols: Sequence[str] = (),
) -> TokenizerPair:
    """Learn the tokenizers from the two sides of the training text, or a joint one from a single text.

    The vocabulary has `text_tags` and, if `config.tag` is set, a tag for each of the languages; pieces have `symbols`.
    """
    tags = [*(sorted(map(language_tag, languages)) if config.tag else ()), *(f"<{tag}>" for tag in text_tags)]
    if config.joint:
        both = train_tokenizer(config, src, tgt, tags=tags, symbols=symbols)
        pair = TokenizerPair(both, both)
        return pair.into(languages[1]) if config.tag else pair
    return TokenizerPair(
        train_tokenizer(config, src, tags=tags, symbols=symbols), train_tokenizer(config, tgt, symbols=symbols)
    )


def train_tokenizer(
    config: TokenizerConfig, *texts: Iterable[str], tags: Sequence[str] = (), symbols: Sequence[str] = ()
) -> Tokenizer:
    """Learn one tokenizer from texts; `joint` is ignored."""
    if config.kind == "word":
        return WordTokenizer.train(chain(*texts), config.min_freq, config.lowercase)
    return SentencePieceTokenizer.train(config, texts, tags, symbols)


def load_tokenizers(folder: Path, tag: str | None = None) -> TokenizerPair:
    """Read what `TokenizerPair.save` wrote; for sources with another tag, if it is given: see `with_tag`."""
    if (both := _load(folder / "tokenizer")) is not None:
        pair = TokenizerPair(both, both)
    else:
        src, tgt = _load(folder / "tokenizer_src"), _load(folder / "tokenizer_tgt")
        if src is None or tgt is None:
            raise ValueError(f"no tokenizer in {folder}: give the folder of a training run")
        pair = TokenizerPair(src, tgt)
    if (tags := folder / _TAGS).is_file():
        pair = pair._tagged(tags.read_text().split())
    return pair if tag is None else pair.with_tag(tag)


def _load(stem: Path) -> Tokenizer | None:
    if (pieces := stem.with_suffix(_PIECES)).exists():
        return SentencePieceTokenizer.load(pieces)
    return WordTokenizer.load(words) if (words := stem.with_suffix(_WORDS)).exists() else None
