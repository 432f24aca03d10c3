"""A published corpus under corpus/: fetch, extract, verify, and only then put it in place."""

import gzip
import hashlib
import lzma
import shutil
import sys
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from tempfile import TemporaryDirectory
from typing import IO, cast

import pooch

from const.corpora import CorpusSpec
from utils.file import atomic_folder, read_json, write_json

_DAMAGED = (tarfile.TarError, EOFError, lzma.LZMAError, zlib.error, gzip.BadGzipFile)
_STAMP = ".verified.json"  # size, time and hash of the verified files: an unchanged corpus is not hashed again


def install(spec: CorpusSpec, archive: Path | None, folder: Path) -> dict[str, str]:
    """Make sure that `folder` holds the corpus, verified, and return the hashes of its files.

    A corpus that is already there is kept. One that is missing is taken from a tar archive or a folder, or downloaded.
    """
    stamp = folder / _STAMP
    if stamp.is_file():
        verified = read_json(stamp)
        if {path: about[:-1] for path, about in verified.items()} == _sizes_and_times(spec, folder):
            return {path: about[-1] for path, about in verified.items()}
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
    found = _sizes_and_times(spec, folder)
    hashes = {path: blob_hash(folder / path) for path in found}
    if missing := [path for path in spec.needed if path not in found]:
        raise ValueError(f"{spec.name}: {missing[0]} is missing: {remedy}")
    for path, blob in hashes.items():
        if (accepted := spec.blobs[path]) and blob not in accepted:
            expected = " or ".join(accepted)
            raise ValueError(f"{spec.name}: {path} has git blob hash {blob}, expected {expected}: {remedy}")
    write_json(folder / _STAMP, {path: [*about, hashes[path]] for path, about in found.items()})
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
        found = (match for pattern in patterns for match in sorted(folder.glob(pattern)) if match.is_file())
        if nearest := next(found, None):
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
