"""Parallel corpora: which one a run uses, and how it becomes files of pairs under corpus/, one for each side."""

import gzip
import hashlib
import lzma
import shutil
import sys
import tarfile
import zlib
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, Literal, NamedTuple, cast

from config.data import DataConfig
from const.corpora import CORPORA, CorpusSpec
from const.path import CORPUS
from utils.dataset.cache import cache_folder, file_hash
from utils.dataset.embedded import write_embedded
from utils.dataset.formats import pairs_in, unnamed_columns
from utils.dataset.text import (
    ParallelFiles,
    hold_out,
    read_pairs,
    require_text,
    write_joined,
    write_pairs,
    write_split,
)
from utils.file import atomic_folder, read_json, write_json

Split = Literal["train", "dev", "test"]
SPLITS: tuple[Split, ...] = ("train", "dev", "test")
REBUILT = "extracted again from its source: a few characters differ from the published text"


class FurtherText(NamedTuple):
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
    further: FurtherText = field(default_factory=FurtherText)  # what was added to the training text
    rebuilt: bool = False  # the training text is not the published one to the letter
    extra_sets: Mapping[str, ParallelFiles] = field(default_factory=dict)  # by name; their files may be absent

    def reversed(self) -> "Corpus":
        """Return the corpus in the other direction."""
        train, dev, test = (ParallelFiles(*reversed(files)) for files in (self.train, self.dev, self.test))
        extra = {name: ParallelFiles(*reversed(files)) for name, files in self.extra_sets.items()}
        data = replace(self.data, src_lang=self.data.tgt_lang, tgt_lang=self.data.src_lang)
        return replace(self, data=data, train=train, dev=dev, test=test, extra_sets=extra)

    def held_out(self, name: str) -> ParallelFiles:
        """Return the held-out text of this name: dev, test or one of `extra_sets`."""
        _require_split(name, self.name, self.extra_sets)
        files = self.extra_sets[name] if name in self.extra_sets else {"dev": self.dev, "test": self.test}[name]
        if missing := [file for file in files if name in self.extra_sets and not file.is_file()]:
            raise ValueError(
                f"--split {name}: {missing[0]} is missing, as the archive of {self.name} did not have it: unpack "
                f"{' and '.join(file.name for file in missing)} of {CORPORA[self.name].homepage} into that folder"
            )
        return files

    def fingerprint(self) -> str:
        """Return a hash of the files' contents, in this direction: whatever was derived from other texts is stale."""
        n = self.further.n_pairs
        return _fingerprint([*self.train, *self.dev, *self.test]) + (f"-{n}" if n else "")


def _require_split(name: str, corpus: str, extra_sets: Iterable[str]) -> None:
    if name not in (sets := ["dev", "test", *extra_sets]):
        raise ValueError(f"--split {name}: {corpus} has {', '.join(sets)}; give one of them")


def facts(fingerprint: str, rebuilt: bool) -> dict[str, str]:
    """Return what a result says of its text, by which it can be told from others."""
    return {"fingerprint": fingerprint} | ({"training_text": REBUILT} if rebuilt else {})


def prepare_corpus(config: DataConfig, root: Path = CORPUS) -> Corpus:
    """Prepare the corpus under `root`: fetch, verify and unpack it, or split it, where that is still to be done.

    Further training text is joined to the training text.
    """
    further, corpus = own_pair(config, "more_", root), _without_further(config, root)
    if further is None:
        return corpus
    folder = root / f"joined-{_fingerprint([*corpus.train, *corpus.dev, *corpus.test, *further])}"
    if not folder.is_dir():
        with atomic_folder(folder) as draft:
            added = write_joined(corpus.train, further, (corpus.dev, corpus.test), ParallelFiles.of(draft, "train"))
            write_json(draft / "more.json", added)
    counts = FurtherText(*read_json(folder / "more.json"))
    return replace(corpus, train=ParallelFiles.of(folder, "train"), further=counts)


def prepare_to_score(config: DataConfig, root: Path = CORPUS, split: str = "test") -> Corpus:
    """Prepare the corpus as far as its dev and test text are concerned; its training text may be incomplete.

    Your own training files may be gone, unless lines are held out from them; further training text is not looked at.
    A published corpus that has no such split is not fetched.
    """
    if config.corpus in CORPORA and not config.has_own_text:
        _require_split(split, config.corpus, CORPORA[config.corpus].more_sets)
    return _without_further(config, root, to_train=False)


def _without_further(config: DataConfig, root: Path, to_train: bool = True) -> Corpus:
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
    extra = {name: files(path) for name, path in spec.more_sets.items()} if spec else {}
    return Corpus(name, config, train, dev, test, root, rebuilt=rebuilt, extra_sets=extra)


# Your own texts: one pair in one file is converted, and splits that are not given are held out from the training text,
# once for each content, by which the result is found again.


def _own_files(config: DataConfig, root: Path, to_train: bool) -> Corpus:
    # without a dev or test text, some of its lines are that
    is_read = to_train or not (config.own_files("dev_") and config.own_files("test_"))
    train = own_pair(config, "", root, is_read)
    if not train:
        raise ValueError("your own texts need a training text: give --data.src and --data.tgt, or --data.pairs FILE")
    dev, test = (own_pair(config, prefix, root) for prefix in ("dev_", "test_"))
    if not (dev and test):
        lacking, n = [split for split, files in (("dev", dev), ("test", test)) if not files], config.held_out
        folder = root / f"files-{_fingerprint(train)}-{'-'.join(lacking)}-{n}-by-line"
        if not folder.is_dir():
            if n < 1:
                raise ValueError(f"held_out={n} leaves no {' and no '.join(lacking)} text: give at least 1")
            chosen = hold_out(read_pairs(train), 0 if dev else n, 0 if test else n)
            with atomic_folder(folder) as draft:
                write_split(train, *chosen, draft)
        made = {split: ParallelFiles.of(folder, split) for split in SPLITS}
        train, dev, test = made["train"], dev or made["dev"], test or made["test"]
    return Corpus("files", config, train, dev, test, root)


def own_pair(config: DataConfig, prefix: str, root: Path, is_read: bool = True) -> ParallelFiles | None:
    """Return the files of your own text whose settings begin so, verified if it `is_read`; None if it is not given."""
    given = config.own_files(prefix)
    if len(given) == 1 and f"{prefix}pairs" not in given:
        ((name, file),) = given.items()
        (lacking,) = {f"{prefix}src", f"{prefix}tgt"} - given.keys()
        raise ValueError(f"{name}={file} is missing its counterpart: also give --data.{lacking} FILE")
    if not given:
        return None
    sides = [*given.values()]
    files = ParallelFiles(sides[0], sides[-1])
    if not is_read:
        return files
    for name, file in given.items():
        require_text(file, name)
    if len(given) == 1:
        columns = unnamed_columns(file, config.languages)
        folder = cache_folder(root, "pairs", file_hash(file), file.suffixes, config.languages, *columns)
        if not folder.is_dir():
            with atomic_folder(folder) as draft:
                write_pairs(ParallelFiles.of(draft, "pairs"), pairs_in(file, config.languages))
        files = ParallelFiles.of(folder, "pairs")
    if len({*map(file_hash, files)}) == 1:
        names = " and ".join(f"{name}={file}" for name, file in given.items())
        raise ValueError(f"{names}: both sides have the same content: give a text and its translation")
    return files


def _fingerprint(files: Iterable[Path]) -> str:
    hashes = "".join(map(file_hash, files))
    return hashlib.sha256(bytes.fromhex(hashes)).hexdigest()[:16]


# Published corpora: fetched, extracted, verified, and only then put in place.

_DAMAGED = (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)
_STAMP = ".verified.json"  # size, time and hash of the verified files: an unchanged corpus is not hashed again


def install(spec: CorpusSpec, archive: Path | None, folder: Path) -> dict[str, str]:
    """Make sure that `folder` holds the corpus, verified, and return the hashes of its files.

    A corpus that is already there is kept. One that is missing is taken from a tar archive or a folder, or downloaded.
    """
    if (stamp := folder / _STAMP).is_file():
        verified = read_json(stamp)
        if {path: size_and_time for path, (*size_and_time, _) in verified.items()} == _sizes_and_times(spec, folder):
            return {path: blob for path, (*_, blob) in verified.items()}
        return _verify(spec, folder, f"delete {folder} to have it fetched again")
    if folder.exists():
        raise ValueError(
            f"{folder} was not installed by this command: move it elsewhere, and give train.py its new place, by "
            "--data.archive"
        )
    with atomic_folder(folder) as fresh:
        with TemporaryDirectory(dir=fresh) as download:
            take(archive or _download(spec, Path(download)), spec.blobs, fresh)
        return _verify(
            spec, fresh, f"{archive or spec.url} is not {spec.name} as published, get it from {spec.homepage}"
        )


def _sizes_and_times(spec: CorpusSpec, folder: Path) -> dict[str, list[int]]:
    stats = {path: (folder / path).stat() for path in spec.blobs if (folder / path).is_file()}
    return {path: [stat.st_size, stat.st_mtime_ns] for path, stat in stats.items()}


def _verify(spec: CorpusSpec, folder: Path, remedy: str) -> dict[str, str]:
    """Refuse a folder that is not the corpus, stamp one that is, and return the hashes of its files."""
    sizes_and_times = _sizes_and_times(spec, folder)
    hashes = {path: blob_hash(folder / path) for path in sizes_and_times}
    if missing := [path for path in spec.needed if path not in hashes]:
        raise ValueError(f"{spec.name}: {missing[0]} is missing: {remedy}")
    for path, blob in hashes.items():
        if (accepted := spec.blobs[path]) and blob not in accepted:
            expected = " or ".join(accepted)
            raise ValueError(f"{spec.name}: {path} has git blob hash {blob}, expected {expected}: {remedy}")
    write_json(folder / _STAMP, {path: [*sizes_and_times[path], blob] for path, blob in hashes.items()})
    return hashes


def blob_hash(path: Path) -> str:
    """Return Git's hash of a file's content, as `git hash-object` prints it."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: digest).hexdigest()


def take(source: Path, paths: Collection[str], into: Path) -> None:
    """Copy those of `paths` that a tar archive or folder has, whatever top-level folders they are in there.

    So `orig/kyoto-dev.ja` is also found as `kftt-data-1.0/data/orig/kyoto-dev.ja`. A file that is gzipped by itself
    (`train.de.gz` for `train.de`) is decompressed. Only `paths` are ever written.
    """
    try:
        if source.is_dir():
            _take_from_folder(source, paths, into)
        elif source.is_file():
            _take_from_tar(source, paths, into)
        else:
            raise ValueError(f"no such archive or folder: {source}")
    except tarfile.FilterError as error:
        raise ValueError(
            f"{source} is unsafe: its member {error.tarinfo.name!r} leaves the folder or is no file; get it again"
        ) from None
    except _DAMAGED:
        raise ValueError(f"{source} is truncated, damaged or not a tar archive; get it again") from None


def _take_from_folder(folder: Path, paths: Collection[str], into: Path) -> None:
    for path in paths:
        # nearest first; two levels reach data/task1/raw and kftt-data-1.0/data/orig, while a search of everything
        # below might walk through a whole home folder
        patterns = (f"{top}{path}{end}" for top in ("", "*/", "*/*/") for end in ("", ".gz"))
        files = (file for pattern in patterns for file in sorted(folder.glob(pattern)) if file.is_file())
        if nearest := next(files, None):
            with nearest.open("rb") as stream:
                _write(stream, nearest.name, into / path)


def _take_from_tar(archive: Path, paths: Collection[str], into: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            tarfile.data_filter(member, str(into))  # raises for any member that would be unsafe to unpack
            parts = PurePosixPath(member.name.removesuffix(".gz")).parts
            for path in paths:
                end = PurePosixPath(path).parts
                if parts[-len(end) :] == end and not (into / path).exists():
                    if not member.isfile():
                        raise tarfile.SpecialFileError(member)
                    _write(cast(IO[bytes], tar.extractfile(member)), member.name, into / path)


def _write(stream: IO[bytes], name: str, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file, gzip.open(stream) if name.endswith(".gz") else stream as content:
        shutil.copyfileobj(content, file)


def _download(spec: CorpusSpec, into: Path) -> Path:
    """Fetch the archive, or each file by itself; return the archive or the folder of the files."""
    if "{file}" in spec.url:
        end = ".gz" if spec.url.endswith(".gz") else ""
        source, urls = into, {path + end: spec.url.format(file=path) for path in spec.needed + spec.optional}
    else:
        name = spec.url.rpartition("/")[2]
        source, urls = into / name, {name: spec.url}
    import pooch  # slow, and only a download needs it

    print(f"Fetching {spec.name} ({spec.download_mb} MB, {spec.licence}) from {spec.homepage}", file=sys.stderr)
    pooch.get_logger().setLevel("WARNING")
    # no hash here: the texts inside are verified, however they were packed
    fetcher = pooch.create(path=into, base_url="", registry=dict.fromkeys(urls), urls=urls, retry_if_failed=2)
    try:
        for name in urls:
            fetcher.fetch(name, downloader=pooch.HTTPDownloader(progressbar=sys.stderr.isatty()))
    except OSError as error:  # the base of all that requests raises
        reason: BaseException = error
        while reason.__context__:  # the innermost is the most informative
            reason = reason.__context__
        command = "python train.py --config {}_{}_{}".format(spec.name.removesuffix("_tok"), *spec.languages)
        raise ValueError(
            f"could not fetch {spec.name} from {urls[name]} ({reason}): "
            f"`{command} --data.corpus {spec.name} --data.archive PATH --dry-run` prepares it from a local .tar.gz, "
            f".tar.xz or unpacked folder of {spec.homepage}; `python train.py --config demo` needs no network"
        ) from None
    return source
