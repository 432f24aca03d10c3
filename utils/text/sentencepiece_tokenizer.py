"""Sub-words: SentencePiece (Kudo & Richardson 2018) as a unigram model (Kudo 2018) or BPE (Sennrich et al. 2016)."""

import io
import random
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Literal

import sentencepiece

from const.token import BOS, BOS_ID, EOS, EOS_ID, PAD, PAD_ID, SPECIAL_TOKENS, UNK, UNK_ID
from utils.file import atomic_file
from utils.text.subword_sampling import BpeSampler, Cut, Piece, UnigramSampler
from utils.text.tokenizer import Lines

SUFFIX = ".model"
_WORD = re.compile("▁?[^▁]+|▁")  # pieces have a ▁ only at their beginning
# More characters change the pieces little, but take minutes, and 25 bytes of memory each: all 77 million of KFTT, 2 GB.
_MOST_TRAINING_CHARACTERS = 30_000_000


class SentencePieceTokenizer:
    """A trained SentencePiece model.

    Args:
        model: the serialised model.
    """

    def __init__(self, model: bytes) -> None:
        self._model = model
        self._processor = sentencepiece.SentencePieceProcessor(model_proto=model)
        self._cuts: dict[float, Cut] = {}

    @classmethod
    def train(
        cls,
        lines: Lines,
        kind: Literal["unigram", "bpe"],
        vocab_size: int,
        character_coverage: float,
        normalization: str,
        tags: Sequence[str] = (),
    ) -> "SentencePieceTokenizer":
        """Learn pieces from lines; from every k-th line of a very large text. Tags are ids that no text is encoded to.

        Raises:
            ValueError: fewer pieces than characters are requested, or (BPE) more than the lines provide.
        """
        writer = io.BytesIO()
        stride = -(-sum(map(len, lines)) // _MOST_TRAINING_CHARACTERS) or 1
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=islice(lines, 0, None, stride),
                model_writer=writer,
                model_type=kind,
                vocab_size=vocab_size,
                character_coverage=character_coverage,
                normalization_rule_name=normalization,
                pad_id=PAD_ID,
                unk_id=UNK_ID,
                bos_id=BOS_ID,
                eos_id=EOS_ID,
                pad_piece=PAD,
                unk_piece=UNK,
                bos_piece=BOS,
                eos_piece=EOS,
                control_symbols=list(tags),
                hard_vocab_limit=kind == "bpe",  # a unigram model may end up with fewer pieces; BPE counts its merges
                max_sentence_length=16384,
                minloglevel=2,
            )
        except RuntimeError as error:
            reason = str(error).strip().rsplit("] ", 1)[-1]
            raise ValueError(
                f"tokenizer.vocab_size={vocab_size} does not fit {len(lines)} lines of training text: {reason}"
            ) from error
        return cls(writer.getvalue())

    @classmethod
    def load(cls, path: Path) -> "SentencePieceTokenizer":
        """Read what `save` wrote.

        Raises:
            ValueError: the file is damaged.
        """
        model = path.read_bytes()
        try:
            if model:  # SentencePiece would read an empty file as a model without pieces
                return cls(model)
        except RuntimeError:
            pass  # its message only names SentencePiece's own source file
        raise ValueError(f"{path} is damaged: copy it again")

    def save(self, path: Path) -> None:
        """Write the model; any program that uses SentencePiece can read it."""
        with atomic_file(path.with_suffix(SUFFIX)) as draft:
            draft.write_bytes(self._model)

    def __len__(self) -> int:
        """Size of the vocabulary."""
        return int(self._processor.get_piece_size())

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of each text, using one core: large texts are divided among processes.

        Raises:
            ValueError: a text was read from bytes that are not UTF-8.
        """
        try:
            return self._processor.encode(list(texts), num_threads=1)
        except TypeError:  # raised, without a reason, for the surrogates that Python substitutes for such bytes
            for text in texts:
                if not _is_unicode(text):
                    raise ValueError(f"{text!r} is not UTF-8: give the text in UTF-8") from None
            raise

    def sample(self, texts: Sequence[str], rate: float, seed: int) -> list[list[int]]:
        """Return ids of each text, segmented at random as in utils/text/subword_sampling.py."""
        draw, cut = random.Random(seed).random, self._cut(rate)
        sampled = []
        for text in self._processor.normalize(list(texts)):
            ids = [i for word in _WORD.findall(text) for i in cut(word, draw)]
            # adjacent unknown characters are one token, as in `encode`
            sampled.append([i for i, before in zip(ids, [None, *ids], strict=False) if not i == before == UNK_ID])
        return sampled

    def _cut(self, rate: float) -> Cut:
        """Return a sampler for a rate, made only once since it caches words."""
        if rate not in self._cuts:
            ids = [i for i in range(len(SPECIAL_TOKENS), len(self)) if not self._processor.is_control(i)]
            pieces = {self._processor.id_to_piece(i): Piece(i, self._processor.get_score(i)) for i in ids}
            # BPE numbers its merges; the log-probabilities of a unigram model are not whole numbers
            bpe = all(piece.score.is_integer() for piece in pieces.values())
            self._cuts[rate] = BpeSampler(pieces, rate) if bpe else UnigramSampler(pieces, rate)
        return self._cuts[rate]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Return the text of each sequence; an unknown piece becomes ⁇."""
        return self._processor.decode([list(sequence) for sequence in ids]) if len(ids) else []

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Return the pieces; ▁ marks the beginning of a word."""
        return [self._processor.id_to_piece(int(i)) for i in ids]


def _is_unicode(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True
