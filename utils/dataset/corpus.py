"""Parallel corpora: which one a run uses, how it is prepared, and its token ids."""

import hashlib
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from threading import Thread
from typing import Literal, NamedTuple

from config.data import OWN_TEXTS, DataConfig, TokenizerConfig
from const.corpora import CORPORA
from const.path import CORPUS
from utils.command import Log
from utils.dataset.cache import cache_folder, cached, file_hash, remove_cached
from utils.dataset.download import install
from utils.dataset.embedded import write_embedded
from utils.dataset.formats import convert
from utils.dataset.ids import (
    Sampling,
    TokenPairs,
    cached_ids,
    cached_vocabulary,
)
from utils.dataset.text import (
    BLOCK,
    MORE,
    ParallelFiles,
    clean,
    count_shared,
    hold_out,
    read_pairs,
    require_text,
    write_joined,
    write_split,
)
from utils.file import atomic_folder, read_json, write_json
from utils.text.language import looks_tokenized, looks_untokenized, refuse_other_language
from utils.text.tokenizer import TokenizerPair

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
REBUILT = "extracted again from its source: a few characters differ from the published text"
_MORE = "more.json"  # what was joined; of a cleaned text, how many pairs of it were kept


class MoreText(NamedTuple):
    """Further pairs of a training text, which are its last ones, and how many were left out."""

    n_pairs: int = 0
    n_left_out: int = 0


@dataclass(frozen=True)
class Corpus:
    """A corpus, ready to use: three pairs of files and what must be known to use them."""

    name: str  # as in `DataConfig.corpus`, but "files" for all that are your own
    data: DataConfig  # its settings, in this direction
    train: ParallelFiles  # not cleaned yet
    dev: ParallelFiles  # used to choose models
    test: ParallelFiles
    root: Path = CORPUS  # under which is kept what is made of it
    more: MoreText = field(default_factory=MoreText)  # what was added to the training text
    rebuilt: bool = False  # the training text is not the published one to the letter
    more_sets: Mapping[str, ParallelFiles] = field(default_factory=dict)  # by name; their files may be absent

    def reversed(self) -> "Corpus":
        """Return the corpus in the other direction."""
        train, dev, test = (ParallelFiles(*reversed(files)) for files in (self.train, self.dev, self.test))
        more = {name: ParallelFiles(*reversed(files)) for name, files in self.more_sets.items()}
        data = replace(self.data, src_lang=self.data.tgt_lang, tgt_lang=self.data.src_lang)
        return replace(self, data=data, train=train, dev=dev, test=test, more_sets=more)

    def held_out(self, name: str) -> ParallelFiles:
        """Return the held-out text of this name: dev, test or one of `more_sets`."""
        sets = {"dev": self.dev, "test": self.test, **self.more_sets}
        _require_split(name, self.name, self.more_sets)
        if missing := [file for file in sets[name] if name in self.more_sets and not file.is_file()]:
            raise ValueError(
                f"--split {name}: {missing[0]} is missing, as the archive of {self.name} did not have it: unpack "
                f"{' and '.join(file.name for file in missing)} of {CORPORA[self.name].homepage} into that folder"
            )
        return sets[name]

    def fingerprint(self) -> str:
        """Return a hash of the files' contents, in this direction: whatever was derived from other texts is stale."""
        return _fingerprint([*self.train, *self.dev, *self.test]) + (f"-{n}" if (n := self.more.n_pairs) else "")


def _require_split(name: str, corpus: str, more_sets: Iterable[str]) -> None:
    if name not in (sets := ["dev", "test", *more_sets]):
        raise ValueError(f"--split {name}: {corpus} has {', '.join(sets)}; give one of them")


def facts(fingerprint: str, rebuilt: bool) -> dict[str, str]:
    """Return what a result says of its text, by which it can be told from others."""
    return {"fingerprint": fingerprint} | ({"training_text": REBUILT} if rebuilt else {})


def prepare_corpus(config: DataConfig, root: Path = CORPUS) -> Corpus:
    """Prepare the corpus under `root`: fetch, verify and unpack it, or split it, where that is still to be done."""
    more = _own_pair(config, "more_", root)
    corpus = _without_more(config, root)
    return corpus if more is None else _with_more(corpus, more)


def prepare_to_score(config: DataConfig, root: Path = CORPUS, split: str = "test") -> Corpus:
    """Prepare the corpus as far as its dev and test text are concerned; its training text may be incomplete.

    Your own training files may be gone, unless lines are held out from them; further training text is not looked at.
    A published corpus that has no such split is not fetched.
    """
    if config.corpus in CORPORA and not config.has_own_text:
        _require_split(split, config.corpus, CORPORA[config.corpus].more_sets)
    return _without_more(config, root, to_train=False)


def _without_more(config: DataConfig, root: Path, to_train: bool = True) -> Corpus:
    if config.archive and (config.has_own_text or config.corpus not in CORPORA):
        raise ValueError(f"archive={config.archive} is for published corpora ({', '.join(CORPORA)}): leave it out")
    if config.has_own_text:
        return _own_files(config, root, to_train)
    if config.pre_tokenized:
        raise ValueError(f"pre_tokenized=true is for your own texts, and corpus={config.corpus} is none: leave it out")
    spec = CORPORA.get(config.corpus)  # None: the embedded one
    name, languages = (spec.name, spec.languages) if spec else ("embedded", ("ja", "en"))
    src, tgt = config.languages
    if src == tgt or not {src, tgt} <= set(languages):
        raise ValueError(
            f"corpus={config.corpus} has {' and '.join(languages)}, not src_lang={src} to tgt_lang={tgt}: give "
            f"--data.src_lang {languages[0]} --data.tgt_lang {languages[1]}, or the other way round"
        )
    folder, hashes = root / name, dict[str, str]()
    if spec:
        hashes, paths = install(spec, config.archive, folder), spec.splits
    else:
        write_embedded(folder)
        paths = ("kyoto-train.{lang}", "kyoto-dev.{lang}", "kyoto-test.{lang}")

    def files(path: str) -> ParallelFiles:
        return ParallelFiles(*(folder / path.format(lang=lang) for lang in (src, tgt)))

    train, dev, test = map(files, paths)
    rebuilt = spec is not None and any(hashes[file.relative_to(folder).as_posix()] in spec.rebuilt for file in train)
    more = {name: files(path) for name, path in spec.more_sets.items()} if spec else {}
    return Corpus(name, config, train, dev, test, root, rebuilt=rebuilt, more_sets=more)


def _own_files(config: DataConfig, root: Path, to_train: bool) -> Corpus:
    # without a dev or test text, some of its lines are that
    is_read = to_train or not (config.own_files("dev_") and config.own_files("test_"))
    train = _own_pair(config, "", root, is_read)
    if not train:
        raise ValueError("your own texts need a training text: give --data.src and --data.tgt, or --data.pairs FILE")
    dev, test = (_own_pair(config, kind, root) for kind in ("dev_", "test_"))
    if not (dev and test):
        train, dev, test = _split(train, dev, test, config.held_out, root)
    return Corpus("files", config, train, dev, test, root)


def _own_pair(config: DataConfig, kind: str, root: Path, is_read: bool = True) -> ParallelFiles | None:
    given = config.own_files(kind)
    if len(given) == 1 and f"{kind}pairs" not in given:
        ((name, file),) = given.items()
        (lacking,) = {f"{kind}src", f"{kind}tgt"} - given.keys()
        raise ValueError(f"{name}={file} is missing its counterpart: also give --data.{lacking} FILE")
    if not given:
        return None
    sides = [*given.values()]
    files = ParallelFiles(sides[0], sides[-1])
    if not is_read:
        return files
    for name, file in given.items():
        require_text(file, name)
    if len(given) == 1:  # converted once for each content, and found again by it
        folder = cache_folder(root, "pairs", file_hash(file), file.suffixes, config.languages)
        if not folder.is_dir():
            with atomic_folder(folder) as draft:
                convert(file, config.languages, _in_folder(draft, "pairs"))
        files = _in_folder(folder, "pairs")
    if len({*map(file_hash, files)}) == 1:
        names = " and ".join(f"{name}={file}" for name, file in given.items())
        raise ValueError(f"{names}: both sides have the same content: give a text and its translation")
    return files


def _split(
    train: ParallelFiles, dev: ParallelFiles | None, test: ParallelFiles | None, held_out: int, root: Path
) -> tuple[ParallelFiles, ParallelFiles, ParallelFiles]:
    """Hold out the splits that are not given; the result is written once for each content, and found again by it."""
    wanted = [name for name, files in (("dev", dev), ("test", test)) if files is None]
    n_dev, n_test = (held_out if name in wanted else 0 for name in ("dev", "test"))
    folder = root / f"files-{_fingerprint(train)}-{'-'.join(wanted)}-{held_out}-by-line"
    if not folder.is_dir():
        if held_out < 1:
            raise ValueError(f"held_out={held_out} leaves no {' and no '.join(wanted)} text: give at least 1")
        rest, *held = hold_out(read_pairs(train), n_dev, n_test)
        with atomic_folder(folder) as draft:
            chosen = [rows for rows in held if rows]
            write_split(train, rest, chosen, [_in_folder(draft, name) for name in ("train", *wanted)])
    return _in_folder(folder, "train"), dev or _in_folder(folder, "dev"), test or _in_folder(folder, "test")


def _with_more(corpus: Corpus, more: ParallelFiles) -> Corpus:
    """Return the corpus with more pairs to train on; they are joined once for each content, and found again by it."""
    folder = corpus.root / f"joined-{_fingerprint([*corpus.train, *corpus.dev, *corpus.test, *more])}"
    if not folder.is_dir():
        with atomic_folder(folder) as draft:
            added = write_joined(corpus.train, more, (corpus.dev, corpus.test), _in_folder(draft, "train"))
            write_json(draft / _MORE, added)
    return replace(corpus, train=_in_folder(folder, "train"), more=MoreText(*read_json(folder / _MORE)))


def _in_folder(folder: Path, split: str) -> ParallelFiles:
    return ParallelFiles(folder / f"{split}.src", folder / f"{split}.tgt")


def _fingerprint(files: Iterable[Path]) -> str:
    hashes = "".join(file_hash(path) for path in files)
    return hashlib.sha256(bytes.fromhex(hashes)).hexdigest()[:16]


# From files to token ids: `_cleaned`, then `cached_tokenizers`, then `cached_tokens`. Each result is made once, by
# `cached` in utils/dataset/cache.py, in a folder named by a hash of what it was made from; sampled ids once per epoch.


def cached_tokenizers(corpus: Corpus, config: TokenizerConfig, log: Log) -> TokenizerPair:
    """Return the tokenizers of a corpus, learned from its cleaned training text at the first call."""
    data, files = corpus.data, _cleaned(corpus, log)
    kinds = sorted({tag for tag in (data.tag, data.more_tag) if tag})
    return cached_vocabulary(corpus.name, files, config, data.languages, log, corpus.root, kinds)


def cached_tokens(corpus: Corpus, split: Split, tokenizers: TokenizerPair, log: Log) -> TokenPairs:
    """Return the ids of a split, encoded at the first call; only training text is cleaned."""
    if split == "train":
        return TokenPairs.load(_training_ids(corpus, tokenizers, log))
    return TokenPairs.load(cached_ids(f"{corpus.name}-{split}", getattr(corpus, split), tokenizers, log, corpus.root))


def training_tokens(
    corpus: Corpus, tokenizers: TokenizerPair, sampling: float, seed: int, log: Log, ahead: bool = False
) -> Callable[[int], TokenPairs]:
    """Return a function that gives the ids of the training text for each epoch: always the same, or sampled again.

    How a line is segmented depends only on the seed, the epoch and the block of lines that it is in. The ids of an
    epoch are kept until a later epoch is requested, so that an interrupted training finds them again. Those of the next
    one are made meanwhile (`ahead`) where a GPU would wait for them; a CPU has the same work to do now or later.
    """
    if not sampling:
        pairs = cached_tokens(corpus, "train", tokenizers, log)
        return lambda _: pairs

    def prepare(epoch: int) -> None:
        with suppress(Exception):  # of a full disk, say: it is raised when the epoch is requested
            _training_ids(corpus, tokenizers, lambda _: None, Sampling(sampling, seed, epoch))

    def tokens(epoch: int) -> TokenPairs:
        pairs = None
        while pairs is None:
            folder = _training_ids(corpus, tokenizers, log, Sampling(sampling, seed, epoch))
            with suppress(FileNotFoundError):  # another training, epochs ahead, has just removed it: make it again
                pairs = TokenPairs.load(folder)
        if ahead:
            Thread(target=prepare, args=[epoch + 1], daemon=True).start()
        stem = folder.name.removesuffix(str(epoch))
        for other in folder.parent.glob(f"{stem}*"):
            if int(other.name.removeprefix(stem)) < epoch:
                remove_cached(other)  # a process that has mapped its files keeps them
        return pairs

    return tokens


def _training_ids(corpus: Corpus, tokenizers: TokenizerPair, log: Log, drawn: Sampling | None = None) -> Path:
    """Return the folder with the ids of the cleaned training text, whose further pairs may have a tag of their own."""
    data, files, more = corpus.data, _cleaned(corpus, log), None
    if corpus.more.n_pairs and data.tag != data.more_tag:
        more = read_json(files.src.with_name(_MORE)), tokenizers.of_kind(data.more_tag)
    name = corpus.name if drawn else f"{corpus.name}-train"
    return cached_ids(name, files, tokenizers, log, corpus.root, drawn, more)


def _cleaned(corpus: Corpus, log: Log) -> ParallelFiles:
    """Return the training text, cleaned at the first call."""
    data = corpus.data

    def make(folder: Path) -> None:
        counts = clean(corpus.train, data.clean, _in_folder(folder, "train"), corpus.more.n_pairs)
        total = sum(counts.values())
        table = "\n".join(f"  {rule:<14}{n:>10,}  {n / total:7.2%}" for rule, n in counts.items())
        log(f"Cleaning the training text of {corpus.name}, {total:,} pairs:\n{table}")
        if any(corpus.more):
            n_pairs, n_left_out = corpus.more
            log(f"  with {n_pairs:,} further pairs; {n_left_out:,} were left out: the dev or test text has their lines")
        write_json(folder / _MORE, counts.get(MORE, 0))
        for split, held in (("dev", corpus.dev), ("test", corpus.test)):
            if any(shared := count_shared(corpus.train, held)):
                found = ", ".join(f"{n:,} {what}" for what, n in shared._asdict().items())
                log(f"  it has lines of the {split} text, whose scores flatter the model: {found}")

    tags = [] if data.tag == data.more_tag else [data.tag, data.more_tag]
    path = cache_folder(corpus.root, f"{corpus.name}-cleaned", corpus.fingerprint(), asdict(data.clean), *tags)
    return _in_folder(cached(path, make, log), "train")


# Checks of your own texts before hours go by: are they in their languages, on their sides, tokenized as is said?

_MANY_COPIES = 0.3  # of the lines; names and formulas are few
_FIT_BETTER = 2.0  # times as many known words: names and marks are in both languages
_Texts = tuple[tuple[str, ...], tuple[str, ...]]  # of both sides


def refuse_other_languages(data: DataConfig, root: Path = CORPUS) -> None:
    """Refuse a text of your own that begins in other languages than those it is said to be in."""
    for kind in OWN_TEXTS:
        if files := _own_pair(data, kind, root):
            for side, file, lines in zip(("src", "tgt"), files, _beginning(files), strict=True):
                remedy = f"{_swapped(data, kind)}, or is --data.{side}_lang wrong?"
                refuse_other_language(lines, getattr(data, f"{side}_lang"), str(file), remedy)


def _swapped(data: DataConfig, kind: str) -> str:
    if f"{kind}pairs" in (given := data.own_files(kind)):
        return f"are the columns of {given[f'{kind}pairs']} swapped, or without names"
    return f"are --data.{kind}src and --data.{kind}tgt swapped"


def check_own_text(corpus: Corpus, log: Callable[[str], object]) -> None:
    """Refuse a text of your own whose sides are the other way round than is said; remark on spaces that are odd.

    Letters do not tell English from German. So the words of development and test text are compared with those of the
    training text, and the words of further training text with those of the development text.
    """
    data = corpus.data
    for kind, beside in (("dev_", corpus.train), ("test_", corpus.train), ("more_", corpus.dev)):
        if (files := _own_pair(data, kind, corpus.root)) and _has_words_of_other_side(
            _beginning(files), _beginning(beside)
        ):
            raise ValueError(
                f"{files.src} has the words of {beside.tgt}, and {files.tgt} those of {beside.src}: "
                f"{_swapped(data, kind)}?"
            )
    if data.has_own_text:
        files = _own_pair(data, "", corpus.root) or corpus.train
        src, tgt = _beginning(files)
        if (copied := sum(map(str.__eq__, src, tgt)) / len(src)) > _MANY_COPIES:
            log(f"{copied:.0%} of the lines of {files.src} are their own translations: is that right?")
        target, lines = corpus.dev.tgt, _beginning(corpus.dev)[1]
        if not data.is_tokenized and looks_tokenized(lines):
            log(
                f"{target} looks tokenized: give --data.pre_tokenized true if spaces separate all words and marks, "
                "so that BLEU takes them as they are"
            )
        if data.is_tokenized and looks_untokenized(lines):
            log(f"{target} does not look tokenized, and BLEU splits it at spaces: is --data.pre_tokenized true right?")


def _beginning(files: ParallelFiles) -> _Texts:
    src, tgt = zip(*islice(read_pairs(files), BLOCK), strict=True)
    return src, tgt


def _has_words_of_other_side(texts: _Texts, beside: _Texts) -> bool:
    """Return whether both sides of a text have far more of the words of the other side than of their own."""
    found, known = ([" ".join(lines).lower().split() for lines in sides] for sides in (texts, beside))
    words = [set(side) for side in known]

    def n_known(side: int, among: int) -> int:
        return sum(word in words[among] for word in found[side])

    return all(n_known(side, 1 - side) > _FIT_BETTER * n_known(side, side) for side in (0, 1))
