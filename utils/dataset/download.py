"""A published corpus under corpus/: fetch, extract, verify, and only then put it in place."""

import gzip
import hashlib
import json
import lzma
import os
import shutil
import sys
import tarfile
import zlib
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, cast

import pooch

from const.corpora import CorpusSpec, SplitSpec
from utils.file import put_in_place, write_text

# Extraction of known files from an archive or folder of others, without trusting it.

_DAMAGED = (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)


def take(source: Path, paths: Collection[str], into: Path) -> None:
    """Copy those of `paths` that `source` has to `into`, whatever top-level folders they are in.

    So `orig/kyoto-dev.ja` is also found as `kftt-data-1.0/data/orig/kyoto-dev.ja`. A file that is gzipped by itself
    (`train.de.gz` for `train.de`) is decompressed. Only `paths` are ever written.

    Args:
        source: a tar archive (.tar, .tar.gz, .tar.xz, ...) or a folder
        paths: the wanted files, relative, with forward slashes
        into: an existing folder

    Raises:
        ValueError: `source` is missing, damaged or unsafe
    """
    try:
        if source.is_dir():
            _take_from_folder(source, paths, into)
        elif source.is_file():
            _take_from_tar(source, paths, into)
        else:
            raise ValueError(f"no such archive or folder: {source}")
    except tarfile.FilterError as error:
        name = error.tarinfo.name
        raise ValueError(
            f"{source} is unsafe: its member {name!r} leaves the folder or is a device; get it again"
        ) from None
    except _DAMAGED:
        raise ValueError(f"{source} is truncated, damaged or not a tar archive; get it again") from None


def _take_from_folder(folder: Path, paths: Collection[str], into: Path) -> None:
    for path in paths:
        # nearest first; two levels reach data/task1/raw and kftt-data-1.0/data/orig, while a search of everything
        # below might walk through a whole home folder
        for pattern in (f"{top}{path}{end}" for top in ("", "*/", "*/*/") for end in ("", ".gz")):
            found = next((match for match in sorted(folder.glob(pattern)) if match.is_file()), None)
            if found:
                with found.open("rb") as stream:
                    _write(stream, found.name, path, into)
                break


def _take_from_tar(archive: Path, paths: Collection[str], into: Path) -> None:
    with tarfile.open(archive) as tar:
        for member in tar:
            tarfile.data_filter(member, str(into))  # raises for any member that would be unsafe to unpack
            for path in paths:
                if not _is_at(member.name, path) or (into / path).exists():
                    continue
                if not member.isfile():
                    raise ValueError(
                        f"{archive} is unsafe: its member {member.name!r} is not a regular file; get it again"
                    )
                _write(cast(IO[bytes], tar.extractfile(member)), member.name, path, into)


def _is_at(name: str, path: str) -> bool:
    parts, end = PurePosixPath(name.removesuffix(".gz")).parts, PurePosixPath(path).parts
    return parts[-len(end) :] == end


def _write(stream: IO[bytes], name: str, path: str, into: Path) -> None:
    (into / path).parent.mkdir(parents=True, exist_ok=True)
    with (into / path).open("wb") as file:
        if name.endswith(".gz"):
            with gzip.open(stream) as unzipped:
                shutil.copyfileobj(unzipped, file)
        else:
            shutil.copyfileobj(stream, file)


# Installing a published corpus under corpus/: fetch, extract, verify, and only then put it in place.
#
# Everything happens in a temporary folder next to the final one, which appears by a single rename once all is
# verified. A folder with a stamp is therefore complete, even if a process was interrupted or several ran at the same
# time.

_STAMP = ".verified.json"  # sizes and times of the verified files: an unchanged corpus is not hashed again


def install(spec: CorpusSpec, archive: Path | None, folder: Path) -> None:
    """Make sure that `folder` holds the corpus, verified.

    A corpus that is already there is kept, and then neither `archive` nor the network is used.

    Args:
        spec: the corpus
        archive: a tar archive or a folder to copy from; None downloads
        folder: where to put the corpus

    Raises:
        ValueError: the corpus cannot be fetched, or what was fetched is not the published text
    """
    if _is_stamped(folder):
        if (folder / _STAMP).read_text() != _stamp(spec, folder):
            _verify(spec, folder, f"delete {folder} to have it fetched again")
            _write_stamp(spec, folder)
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    mark = f".{os.getpid()}.part"  # by which `sweep_drafts` recognises leftovers
    with TemporaryDirectory(mark, f".{spec.name}.", folder.parent) as temporary:
        fresh = Path(temporary) / "fresh"
        fresh.mkdir()
        source = archive or _download(spec, Path(temporary) / "download")
        take(source, [path for path, _, _ in _files((*spec.splits, *spec.extra))], fresh)
        _verify(spec, fresh, f"{archive or spec.url} is not {spec.name} as published, get it from {spec.homepage}")
        _write_stamp(spec, fresh)
        if folder.exists() and not _is_stamped(folder):
            _put_aside(folder, Path(temporary) / "aside")
        put_in_place(fresh, folder)


def _put_aside(folder: Path, on_the_way: Path) -> None:
    """Rename a folder that was not installed here: unpacked by hand, it may hold more than the corpus."""
    with suppress(FileNotFoundError):  # another process was faster
        folder.rename(on_the_way)
    if on_the_way.exists() and not _is_stamped(on_the_way):  # another process may have finished meanwhile
        names = (folder.with_name(f"{folder.name}-before-{n}") for n in count(1))
        aside = next(name for name in names if not name.exists())
        on_the_way.rename(aside)
        print(f"{folder} was not installed by this command: it is now {aside}", file=sys.stderr)


def blob_hash(path: Path) -> str:
    """Return Git's hash of a file's content, as `git hash-object` prints it."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def _download(spec: CorpusSpec, into: Path) -> Path:
    """Fetch the archive, or each file by itself; return the archive or the folder of the files."""
    if "{file}" in spec.url:
        urls = {path: spec.url.format(file=path) for path, _, _ in _files(spec.splits)}
        urls = {path + (".gz" if url.endswith(".gz") else ""): url for path, url in urls.items()}
        source = into
    else:
        name = spec.url.rpartition("/")[2]
        urls = {name: spec.url}
        source = into / name
    print(f"Fetching {spec.name} ({spec.download_mb} MB, {spec.licence}) from {spec.homepage}", file=sys.stderr)
    pooch.get_logger().setLevel("WARNING")
    # no hash here: the texts inside are verified, however they were packed
    registry = dict.fromkeys(urls)
    fetcher = pooch.create(path=into, base_url="", registry=registry, urls=urls, retry_if_failed=2)
    downloader = pooch.HTTPDownloader(progressbar=sys.stderr.isatty())
    try:
        for name in urls:
            fetcher.fetch(name, downloader=downloader)
    except OSError as error:  # the base of all that requests raises
        reason: BaseException = error
        while reason.__context__:  # the innermost is the most informative
            reason = reason.__context__
        raise ValueError(
            f"could not fetch {spec.name} from {urls[name]} ({reason}): give --data.archive PATH "
            f"(a local .tar.gz, .tar.xz or unpacked folder of {spec.homepage}), "
            "or try the corpus that needs no network: --config demo"
        ) from None
    return source


def _files(splits: Iterable[SplitSpec]) -> Iterator[tuple[str, SplitSpec, str]]:
    """Yield path, split and language of each file."""
    for split in splits:
        for lang in split.blobs:
            yield split.path(lang), split, lang


def _verify(spec: CorpusSpec, folder: Path, remedy: str) -> None:
    for path, split, lang in _files((*spec.splits, *spec.extra)):
        file = folder / path
        if not file.is_file():
            if split in spec.extra:
                continue
            raise ValueError(f"{spec.name}: {path} is missing: {remedy}")
        lines = file.read_bytes().count(b"\n")
        if lines != split.lines:
            raise ValueError(f"{spec.name}: {path} has {lines:,} lines, expected {split.lines:,}: {remedy}")
        found = blob_hash(file)
        if found not in split.blobs[lang]:
            expected = " or ".join(split.blobs[lang])
            raise ValueError(f"{spec.name}: {path} has git blob hash {found}, expected {expected}: {remedy}")


def _is_stamped(folder: Path) -> bool:
    return (folder / _STAMP).is_file()


def _stamp(spec: CorpusSpec, folder: Path) -> str:
    files = [folder / path for path, _, _ in _files((*spec.splits, *spec.extra))]
    stats = {str(file.relative_to(folder)): file.stat() for file in files if file.is_file()}
    return json.dumps({name: [stat.st_size, stat.st_mtime_ns] for name, stat in stats.items()}, indent=1)


def _write_stamp(spec: CorpusSpec, folder: Path) -> None:
    write_text(folder / _STAMP, _stamp(spec, folder))
