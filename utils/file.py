"""Files that are either whole or not there: written under another name, synced, renamed."""

import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a name to write to; what was written there takes the place of `path` if the block ends well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield draft
        _sync(draft)
        draft.replace(path)
        _sync(path.parent)
    finally:
        draft.unlink(missing_ok=True)


def put_in_place(fresh: Path, folder: Path) -> None:
    """Write a folder through to the disk and rename it to `folder`, unless another process was faster."""
    for path in (*fresh.rglob("*"), fresh):
        _sync(path)
    try:
        fresh.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
    _sync(folder.parent)


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; it becomes `path` if the block ends well.

    Where `path` is there already (another process was faster, say), that one stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent))
    try:
        yield draft
        draft.chmod(0o755)  # mkdtemp makes it unreadable to others
        put_in_place(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
