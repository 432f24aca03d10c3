"""Extraction of known files from an archive or folder of others, without trusting it."""

import gzip
import lzma
import shutil
import tarfile
import zlib
from collections.abc import Collection
from pathlib import Path, PurePosixPath
from typing import IO, cast

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
