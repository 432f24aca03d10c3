"""Parallel corpora: which one a run uses, and how it is prepared; published ones, the embedded one, or your own."""

import hashlib
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, NamedTuple

from const.corpora import CORPORA, CorpusSpec
from const.path import CORPUS
from utils.dataset.cleaning import CleanConfig
from utils.dataset.embedded import write_embedded
from utils.dataset.file_hash import file_hash
from utils.dataset.held_out import hold_out, write_joined, write_split
from utils.dataset.install import install
from utils.dataset.parallel_text import ParallelFiles
from utils.file import atomic_folder, read_json, write_json
from utils.text.script import require_language

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
_MORE = "more.json"  # what was joined


@dataclass(frozen=True)
class DataConfig:
    """Which parallel corpus to use, in which direction.

    Attributes:
        corpus: the corpus; `files` (your own texts) is implied when `src` and `tgt` are given
        src_lang: language to translate from
        tgt_lang: language to translate into
        archive: a local archive (.tar.gz, .tar.xz) or unpacked folder of the corpus, copied from instead
            of downloaded; ignored once the corpus is verified under corpus/
        src: your own training text, one sentence per line
        tgt: its translation, line by line
        dev_src: your own development text; without it, lines of the training text are held out
        dev_tgt: its translation
        test_src: your own test text; without it, lines of the training text are held out
        test_tgt: its translation
        pre_tokenized: spaces separate all words and marks of your own texts, and BLEU takes them as they are
        held_out: how many lines of your own training text go to dev, and as many to test, where these are not given
        more_src: further training text, for any corpus: back-translations, say; pairs with a line that the dev or test
            text has, too, are left out
        more_tgt: its translation, line by line
        both_directions: learn to translate back, too, from the same pairs (needs `tokenizer.tag`); dev and test text
            are of the one direction
        clean: which pairs of the training text are dropped

    Raises:
        ValueError: a language has no such code
    """

    corpus: Literal["kftt", "tanaka", "multi30k", "multi30k_tok", "embedded", "files"] = "kftt"
    src_lang: str = "ja"
    tgt_lang: str = "en"
    archive: Path | None = None
    src: Path | None = None
    tgt: Path | None = None
    dev_src: Path | None = None
    dev_tgt: Path | None = None
    test_src: Path | None = None
    test_tgt: Path | None = None
    pre_tokenized: bool = False
    held_out: int = 500
    more_src: Path | None = None
    more_tgt: Path | None = None
    both_directions: bool = False
    clean: CleanConfig = field(default_factory=CleanConfig)

    def __post_init__(self) -> None:
        require_language(src_lang=self.src_lang, tgt_lang=self.tgt_lang)

    @property
    def has_own_text(self) -> bool:
        """Whether the texts are your own, whatever `corpus` says."""
        own = (self.src, self.tgt, self.dev_src, self.dev_tgt, self.test_src, self.test_tgt)
        return self.corpus == "files" or any(own)

    @property
    def is_tokenized(self) -> bool:
        """Whether spaces separate all words and marks of the texts."""
        if self.has_own_text or self.corpus not in CORPORA:
            return self.pre_tokenized
        return CORPORA[self.corpus].pre_tokenized


class MoreText(NamedTuple):
    """Further pairs of a training text, which are its last ones, and how many were left out."""

    n_pairs: int = 0
    n_left_out: int = 0


@dataclass(frozen=True)
class Corpus:
    """A corpus, ready to use: three pairs of files and what must be known to use them.

    Attributes:
        name: as in `DataConfig.corpus`
        src_lang: language of the sources
        tgt_lang: language of the translations
        train: training pairs, not cleaned yet
        dev: development pairs, used to choose models
        test: test pairs
        pre_tokenized: words are already separated by spaces: BLEU takes them as they are (`tokenize none`)
        more: what was added to the training text
    """

    name: str
    src_lang: str
    tgt_lang: str
    train: ParallelFiles
    dev: ParallelFiles
    test: ParallelFiles
    pre_tokenized: bool
    more: MoreText = field(default_factory=MoreText)

    def reversed(self) -> "Corpus":
        """Return the corpus in the other direction."""
        train, dev, test = (ParallelFiles(*reversed(files)) for files in (self.train, self.dev, self.test))
        return replace(self, src_lang=self.tgt_lang, tgt_lang=self.src_lang, train=train, dev=dev, test=test)

    def fingerprint(self, root: Path = CORPUS) -> str:
        """Return a hash of the files' contents, in this direction: whatever was derived from other texts is stale.

        Args:
            root: where the hashes of large files are remembered
        """
        return _fingerprint([*self.train, *self.dev, *self.test], root) + (f"-{n}" if (n := self.more.n_pairs) else "")


def prepare_corpus(config: DataConfig, root: Path = CORPUS) -> Corpus:
    """Prepare the corpus under `root`: fetch, verify and unpack it, or split it, where that is still to be done.

    Raises:
        ValueError: the corpus is not available; the message says why and what to do, in one line
    """
    more = _own_pair(config, "more_src", "more_tgt")
    corpus = _without_more(config, root)
    return corpus if more is None else _with_more(corpus, more, root)


def prepare_to_score(config: DataConfig, root: Path = CORPUS) -> Corpus:
    """Prepare the corpus as far as its dev and test text are concerned; its training text may be incomplete.

    Your own training files may be gone, unless lines are held out from them; further training text is not looked at.

    Raises:
        ValueError: as in `prepare_corpus`
    """
    return _without_more(config, root, to_train=False)


def _without_more(config: DataConfig, root: Path, to_train: bool = True) -> Corpus:
    if config.has_own_text:
        return _own_files(config, root, to_train)
    if config.pre_tokenized:
        raise ValueError(f"pre_tokenized=true is for your own texts, and corpus={config.corpus} is none: leave it out")
    if config.corpus == "embedded":
        return _embedded(config, root)
    return _published(CORPORA[config.corpus], config, root)


def _published(spec: CorpusSpec, config: DataConfig, root: Path) -> Corpus:
    src, tgt = _direction(config, spec.languages)
    folder = root / spec.name
    install(spec, config.archive, folder)
    train, dev, test = (ParallelFiles(folder / split.path(src), folder / split.path(tgt)) for split in spec.splits)
    return Corpus(spec.name, src, tgt, train, dev, test, config.is_tokenized)


def _embedded(config: DataConfig, root: Path) -> Corpus:
    _refuse_archive(config)
    src, tgt = _direction(config, ("ja", "en"))
    folder = root / "embedded"
    write_embedded(folder)
    train, dev, test = (
        ParallelFiles(folder / f"kyoto-{split}.{src}", folder / f"kyoto-{split}.{tgt}") for split in SPLITS
    )
    return Corpus("embedded", src, tgt, train, dev, test, config.is_tokenized)


def _direction(config: DataConfig, languages: tuple[str, ...]) -> tuple[str, str]:
    if config.src_lang == config.tgt_lang or not {config.src_lang, config.tgt_lang} <= set(languages):
        raise ValueError(
            f"corpus={config.corpus} has {' and '.join(languages)}, not src_lang={config.src_lang} to "
            f"tgt_lang={config.tgt_lang}: give --data.src_lang {languages[0]} --data.tgt_lang {languages[1]}, "
            "or the other way round"
        )
    return config.src_lang, config.tgt_lang


def _refuse_archive(config: DataConfig) -> None:
    if config.archive:
        raise ValueError(f"archive={config.archive} is for published corpora ({', '.join(CORPORA)}): leave it out")


def _own_files(config: DataConfig, root: Path, to_train: bool) -> Corpus:
    _refuse_archive(config)
    # without a dev or test text, some of its lines are that
    is_read = to_train or not (config.dev_src and config.test_src)
    train = _own_pair(config, "src", "tgt", is_read)
    if not train:
        raise ValueError("your own texts need both sides of the training text: give --data.src FILE --data.tgt FILE")
    dev, test = _own_pair(config, "dev_src", "dev_tgt"), _own_pair(config, "test_src", "test_tgt")
    if not (dev and test):
        train, dev, test = _split(train, dev, test, config.held_out, root)
    return Corpus("files", config.src_lang, config.tgt_lang, train, dev, test, config.is_tokenized)


def _own_pair(config: DataConfig, src: str, tgt: str, is_read: bool = True) -> ParallelFiles | None:
    files: tuple[Path | None, Path | None] = getattr(config, src), getattr(config, tgt)
    match files:
        case None, None:
            return None
        case Path(), Path():
            for name, file in zip((src, tgt), files, strict=True):
                if is_read and not file.is_file():
                    raise ValueError(f"{name}={file}: no such file")
            return ParallelFiles(*files)
        case _:
            given, lacking = (src, tgt) if files[0] else (tgt, src)
            raise ValueError(
                f"{given}={files[0] or files[1]} is missing its counterpart: also give --data.{lacking} FILE"
            )


def _split(
    train: ParallelFiles, dev: ParallelFiles | None, test: ParallelFiles | None, held_out: int, root: Path
) -> tuple[ParallelFiles, ParallelFiles, ParallelFiles]:
    """Hold out the splits that are not given; the result is written once for each content, and found again by it."""
    wanted = [name for name, files in (("dev", dev), ("test", test)) if files is None]
    n_dev, n_test = (held_out if name in wanted else 0 for name in ("dev", "test"))
    folder = root / f"files-{_fingerprint(list(train), root)}-{'-'.join(wanted)}-{held_out}-by-hash"
    if not folder.is_dir():
        if held_out < 1:
            raise ValueError(f"held_out={held_out} leaves no {' and no '.join(wanted)} text: give at least 1")
        rest, *held = hold_out(train, n_dev, n_test)
        with atomic_folder(folder) as draft:
            chosen = [rows for rows in held if rows]
            write_split(train, rest, chosen, [_in_folder(draft, name) for name in ("train", *wanted)])
    return _in_folder(folder, "train"), dev or _in_folder(folder, "dev"), test or _in_folder(folder, "test")


def _with_more(corpus: Corpus, more: ParallelFiles, root: Path) -> Corpus:
    """Return the corpus with more pairs to train on; they are joined once for each content, and found again by it."""
    folder = root / f"joined-{_fingerprint([*corpus.train, *corpus.dev, *corpus.test, *more], root)}"
    if not folder.is_dir():
        with atomic_folder(folder) as draft:
            added = write_joined(corpus.train, more, (corpus.dev, corpus.test), _in_folder(draft, "train"))
            write_json(draft / _MORE, added)
    return replace(corpus, train=_in_folder(folder, "train"), more=MoreText(*read_json(folder / _MORE)))


def _in_folder(folder: Path, split: str) -> ParallelFiles:
    return ParallelFiles(folder / f"{split}.src", folder / f"{split}.tgt")


def _fingerprint(files: list[Path], root: Path) -> str:
    hashes = "".join(file_hash(path, root) for path in files)
    return hashlib.sha256(bytes.fromhex(hashes)).hexdigest()[:16]
