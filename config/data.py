"""Which texts, and how they become tokens and batches."""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from config.bound import Config, bounded
from const.corpora import CORPORA
from const.token import SPECIAL_TOKENS

CorpusName = Literal["kftt", "tanaka", "multi30k", "multi30k_tok", "embedded", "files"]
OWN_TEXTS = ("", "dev_", "test_", "more_")  # how the settings of their files begin

# codes of three letters, as Tatoeba and FLORES have them, for the languages that are treated by their script
_THREE_LETTERS = dict.fromkeys(("zho", "chi", "cmn", "yue", "wuu", "nan", "lzh"), "zh") | {
    "jpn": "ja", "kor": "ko", "tha": "th", "lao": "lo", "khm": "km", "mya": "my", "bur": "my", "bod": "bo", "tib": "bo",
}  # fmt: skip
LANGUAGE_NAMES = {
    "japanese": "ja", "english": "en", "chinese": "zh", "korean": "ko", "german": "de", "french": "fr", "spanish": "es",
    "italian": "it", "portuguese": "pt", "dutch": "nl", "russian": "ru", "vietnamese": "vi", "thai": "th",
}  # fmt: skip
# what is often written for codes: names, and countries
_MISTAKEN = LANGUAGE_NAMES | {
    "jp": "ja", "jap": "ja", "cn": "zh", "tw": "zh", "kr": "ko", "us": "en", "gb": "en", "cz": "cs", "gr": "el",
    "dk": "da", "ua": "uk", "vn": "vi",
}  # fmt: skip


def primary_language(code: str) -> str:
    """Return the language of a code: `zh` for `zh-CN`, `zh_Hant` or `cmn`."""
    language = code.replace("_", "-").partition("-")[0].lower()
    return _THREE_LETTERS.get(language, language)


def require_language(**codes: str) -> None:
    """Refuse what is no language code, by which texts are scored and split into sentences; settings by their names."""
    for name, code in codes.items():
        language = primary_language(code)
        if language in _MISTAKEN:
            raise ValueError(f"{name}={code} is no language code: did you mean {_MISTAKEN[language]}?")
        if not re.fullmatch(r"[a-z]{2,3}", language):
            raise ValueError(f"{name}={code} is no language code: give one of ISO 639, such as ja, en or de")


@dataclass(frozen=True)
class CleanConfig(Config):
    """Which pairs of the training text are dropped. Pairs with an empty side always are.

    Args:
        max_chars: longest sentence on either side in characters; null keeps all.
        max_length_ratio: how many times longer or shorter a translation may be than predicted by the corpus's median
            ratio of lengths in characters (an English text has 3.5 times the characters of the Japanese one); null
            keeps all.
        drop_duplicates: keep only the first of identical pairs.
        max_pairs: learn from only the first N of the remaining pairs, further text (`more_src`) not counted; null
            keeps all.
    """

    max_chars: int | None = bounded(1000, ge=1)
    max_length_ratio: float | None = bounded(4.0, ge=1)
    drop_duplicates: bool = True
    max_pairs: int | None = bounded(None, ge=1)


@dataclass(frozen=True)
class DataConfig(Config):
    """Which parallel corpus to use, in which direction.

    Args:
        corpus: the corpus; `files` (your own texts) is implied when `src` and `tgt` are given.
        src_lang: language to translate from.
        tgt_lang: language to translate into.
        archive: a local archive (.tar.gz, .tar.xz) or unpacked folder of the corpus, copied from instead of
            downloaded; ignored once the corpus is verified under corpus/.
        src: your own training text, one sentence per line.
        tgt: its translation, line by line.
        pairs: both in one file, in place of `src` and `tgt`: .tsv, .csv, .jsonl (JSON Lines) or .tmx.
        dev_src: your own development text; without it, lines of the training text are held out.
        dev_tgt: its translation.
        dev_pairs: both in one file, as `pairs`.
        test_src: your own test text; without it, lines of the training text are held out.
        test_tgt: its translation.
        test_pairs: both in one file, as `pairs`.
        pre_tokenized: spaces separate all words and marks of your own texts, and BLEU takes them as they are.
        held_out: how many lines of your own training text go to dev, and as many to test, where these are not given.
        more_src: further training text, for any corpus: back-translations, say; pairs with a line that the dev or test
            text has, too, are left out.
        more_tgt: its translation, line by line.
        more_pairs: both in one file, as `pairs`.
        tag: the kind of the texts, such as law: each source begins with the token <law>, which the vocabulary gets; so
            do texts that are translated, unless another kind is given.
        more_tag: the kind of the further training text, such as bt for back-translations.
        protected: put stand-ins in place of this share of the numbers, addresses and names that both sides of a
            training pair have, which the network learns to copy; the vocabulary gets them (`utils/text/protected.py`).
        both_directions: learn to translate back, too, from the same pairs (needs `tokenizer.tag`); dev and test text
            are of the one direction.
        clean: which pairs of the training text are dropped.
    """

    corpus: CorpusName = "kftt"
    src_lang: str = "ja"
    tgt_lang: str = "en"
    archive: Path | None = None
    src: Path | None = None
    tgt: Path | None = None
    pairs: Path | None = None
    dev_src: Path | None = None
    dev_tgt: Path | None = None
    dev_pairs: Path | None = None
    test_src: Path | None = None
    test_tgt: Path | None = None
    test_pairs: Path | None = None
    pre_tokenized: bool = False
    held_out: int = 500
    more_src: Path | None = None
    more_tgt: Path | None = None
    more_pairs: Path | None = None
    tag: str | None = None
    more_tag: str | None = None
    protected: float = bounded(0.0, ge=0, le=1)
    both_directions: bool = False
    clean: CleanConfig = field(default_factory=CleanConfig)

    def check(self) -> None:
        """Refuse what is no language or no tag, and a text that is given twice."""
        require_language(src_lang=self.src_lang, tgt_lang=self.tgt_lang)
        for name, tag in (("tag", self.tag), ("more_tag", self.more_tag)):
            if tag is not None and (f"<{tag}>" in SPECIAL_TOKENS or not re.fullmatch("[A-Za-z][A-Za-z0-9_-]*", tag)):
                raise ValueError(f"{name}={tag} is no tag: give a name of Latin letters and digits, such as bt or law")
        if self.more_tag is not None and not self.own_files("more_"):
            raise ValueError(
                f"more_tag={self.more_tag} is for further training text: also give --data.more_src and --data.more_tgt"
            )
        for prefix in OWN_TEXTS:
            if f"{prefix}pairs" in (given := self.own_files(prefix)) and len(given) > 1:
                raise ValueError(f"{' and '.join(given)} are given: set {prefix}pairs, or the others, to null")

    def own_files(self, prefix: str) -> dict[str, Path]:
        """Return the files that are given of one of `OWN_TEXTS`, by their settings."""
        names = (f"{prefix}{name}" for name in ("pairs", "src", "tgt"))
        return {name: file for name in names if (file := getattr(self, name))}

    @property
    def has_own_text(self) -> bool:
        """Whether the texts are your own, whatever `corpus` says."""
        return self.corpus == "files" or any(map(self.own_files, ("", "dev_", "test_")))

    @property
    def languages(self) -> tuple[str, str]:
        """Those to translate from and into."""
        return self.src_lang, self.tgt_lang

    @property
    def is_tokenized(self) -> bool:
        """Whether spaces separate all words and marks of the texts."""
        if self.has_own_text or self.corpus not in CORPORA:
            return self.pre_tokenized
        return CORPORA[self.corpus].pre_tokenized


@dataclass(frozen=True)
class MonolingualConfig(Config):
    """Which monolingual text to use.

    Args:
        corpus: the corpus; `files` (your own texts) is implied when `text` is given.
        language: the side of a published corpus to use, or the language of your own text.
        archive: a local archive (.tar.gz, .tar.xz) or unpacked folder of the corpus, copied from instead of
            downloaded; ignored once the corpus is verified under corpus/.
        text: your own training text, one sentence per line, in document order.
        dev_text: your own development text; without it, the end of the training text is held out.
        test_text: your own test text; without it, the end of the training text is held out.
        documents: a file with the documents of the training text, or of your own text before its end is held out: the
            name and the number of lines of one document per line; without it, all is one document.
        held_out: how many lines of your own training text go to dev, and as many to test, where these are not given;
            with documents, whole documents of at least that many lines.
    """

    corpus: CorpusName = "kftt"
    language: str = "ja"
    archive: Path | None = None
    text: Path | None = None
    dev_text: Path | None = None
    test_text: Path | None = None
    documents: Path | None = None
    held_out: int = 500

    def check(self) -> None:
        """Refuse what is no language."""
        require_language(language=self.language)


@dataclass(frozen=True)
class LabelledConfig(Config):
    """Texts and their labels, line by line in two files.

    Args:
        text: training text, one sentence per line.
        labels: labels of the training text, one per line: any words.
        dev_text: development text, used to choose models.
        dev_labels: labels of the development text.
        test_text: test text.
        test_labels: labels of the test text.
    """

    text: Path
    labels: Path
    dev_text: Path
    dev_labels: Path
    test_text: Path
    test_labels: Path


@dataclass(frozen=True)
class TokenizerConfig(Config):
    """How text is tokenised; always learned from training text alone.

    Args:
        kind: SentencePiece unigram or BPE, or whole words split by spaces.
        vocab_size: most pieces of each SentencePiece model, special tokens included (words: see min_freq).
        joint: one vocabulary for both languages (needed to tie source and target embeddings) or one each.
        character_coverage: share of the characters that get a piece of their own; the rest is <unk>.
        normalization: SentencePiece's rule. identity leaves the text unchanged, so that targets keep their full-width
            characters; nfkc and nmt_nfkc unify them, which changes what is generated and what BLEU compares.
        lowercase: lower-case text (words only).
        min_freq: how often a word must occur to be kept (words only).
        sampling: segment training text at random, again each epoch: for a unigram model the exponent alpha to which a
            segmentation's probability is raised before one is drawn (Kudo 2018; 0.2: far from the likeliest, 1: near
            it), for BPE the share of merges that are skipped (BPE-dropout, Provilkov et al. 2020; 0.1). 0 always
            takes the likeliest segmentation, as is always done for dev and test.
        tag: begin each source with a token that names the language to translate into, such as <2en>, so that one
            network can learn both directions (see `DataConfig.both_directions`). A joint vocabulary of pieces only.
    """

    kind: Literal["unigram", "bpe", "word"] = "unigram"
    vocab_size: int = bounded(8000, ge=1)
    joint: bool = True
    character_coverage: float = bounded(0.9995, ge=0.98, le=1)
    normalization: Literal["identity", "nfkc", "nmt_nfkc", "nfkc_cf", "nmt_nfkc_cf"] = "identity"
    lowercase: bool = False
    min_freq: int = bounded(2, ge=1)
    sampling: float = bounded(0.0, ge=0, le=1, hint="0: no sampling")
    tag: bool = False

    def check(self) -> None:
        """Refuse what a kind of tokenizer does not have."""
        if self.lowercase and self.kind != "word":
            raise ValueError(
                f"lowercase=true needs kind=word: with kind={self.kind} give normalization nfkc_cf, or lower-cased text"
            )
        if self.sampling and self.kind == "word":
            raise ValueError(
                f"sampling={self.sampling} splits words into pieces, kind=word keeps them whole: "
                "set it to 0, or kind to unigram or bpe"
            )
        if self.tag and (self.kind == "word" or not self.joint):
            raise ValueError(
                f"tag=true is a piece of a joint vocabulary, but kind={self.kind} and joint={self.joint}: give kind "
                "unigram or bpe, and joint true"
            )


@dataclass(frozen=True)
class MaskingConfig(Config):
    """What is hidden, and whether sentences come in pairs.

    Args:
        rate: share of an example's tokens that are predicted; at least one is.
        whole_words: all pieces of a word are hidden together: with SentencePiece those up to the next ▁, in scripts
            without spaces each piece by itself.
        next_sentence: examples are two sentences, of which the second follows the first or comes from elsewhere.
    """

    rate: float = bounded(0.15, gt=0, lt=1)
    whole_words: bool = False
    next_sentence: bool = True


def _half_at_once(name: str, value: int, accumulate: int) -> str:
    return (
        f"lower --batch.{name} (now {value}) and raise --batch.accumulate (now {accumulate}) to keep the size of an "
        f"update, say --batch.{name} {value // 2} --batch.accumulate {2 * accumulate}"
    )


@dataclass(frozen=True)
class BatchConfig(Config):
    """How training pairs become batches.

    Args:
        tokens_per_batch: most tokens of a batch on either side, padding and </s> included, unless a single pair has
            more; one update sees `accumulate` such batches.
        accumulate: batches whose gradients are added before an update.
        max_tokens: pairs with a longer side are left out of training; monolingual texts are truncated.
        length_multiple: lengths are padded up to a multiple of it, and the sentences of a batch are a multiple of it
            where there are that many: 8 gives torch.compile and CUDA graphs few shapes; 1 pads least.
        sentences_per_batch: most pairs of a batch, which ends at whichever bound comes first; null: bounded by
            tokens_per_batch alone.
    """

    tokens_per_batch: int = bounded(4096, ge=1)
    accumulate: int = bounded(1, ge=1)
    max_tokens: int = bounded(128, ge=1)
    length_multiple: int = bounded(1, ge=1, le=1024)
    sentences_per_batch: int | None = bounded(None, ge=1)

    def remedy(self) -> str:
        """Return what to change where a batch does not fit in memory."""
        if self.sentences_per_batch is not None and self.sentences_per_batch > 1:
            return _half_at_once("sentences_per_batch", self.sentences_per_batch, self.accumulate)
        if self.tokens_per_batch > self.max_tokens:
            return _half_at_once("tokens_per_batch", self.tokens_per_batch, self.accumulate)
        return f"a single pair fills it, so lower --batch.max_tokens (now {self.max_tokens})"

    def require_positions(self, positions: int, option: str = "model.max_length") -> None:
        """Refuse settings whose batches may be longer than a learned table of positions, of the size of an option."""
        longest = -(-self.max_tokens // self.length_multiple) * self.length_multiple
        if longest > positions:
            raise ValueError(
                f"max_tokens={self.max_tokens} allows sentences of {longest} positions, padding included, and the "
                f"learned table has {option}={positions}: give --{option} {longest}, or lower --batch.max_tokens"
            )


@dataclass(frozen=True)
class StreamConfig(Config):
    """How a text becomes batches for a recurrent language model.

    Args:
        n_streams: rows of a batch, each of which continues where it ended in the previous batch.
        segment_length: tokens of a row.
        accumulate: batches whose gradients are added before an update, each with streams of its own.
    """

    n_streams: int = bounded(16, ge=1)
    segment_length: int = bounded(64, ge=1)
    accumulate: int = bounded(1, ge=1)

    def remedy(self) -> str:
        """Return what to change where a batch does not fit in memory."""
        if self.n_streams == 1:
            return f"a single stream fills it, so lower --batch.segment_length (now {self.segment_length})"
        return _half_at_once("n_streams", self.n_streams, self.accumulate)
