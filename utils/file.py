"""Files that are either whole or not there: written under another name, synced, renamed."""

import errno
import fcntl
import json
import os
import re
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk is full, or what this user or process may write
_DRAFT = re.compile(r"\..+\.(\d+)\.part")
_ABANDONED = 24 * 3600.0  # seconds after which a draft is nobody's, whatever process has its number now


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def no_room(path: Path, draft: Path, size: int | None, reason: str) -> OSError:
    """What to raise when a file does not fit on its disk: one line with what is needed and what there is.

    Args:
        path: of the file.
        draft: what was written of it; its room counts as free, for it goes.
        size: bytes of the whole file; None: unknown.
        reason: of the operating system.
    """
    written = draft.stat().st_blocks * 512 if draft.exists() else 0
    free = shutil.disk_usage(path.parent).free + written
    need = f"more than {written / 2**20:.2f}" if size is None else f"{size / 2**20:.2f}"
    return OSError(
        f"no room for {path.name} ({reason}): it needs {need} MiB, and {free / 2**20:.2f} MiB are free in "
        f"{path.parent}: make room there, or raise the limit; what was written before is whole"
    )


def require_file(*paths: Path | None) -> None:
    """Refuse places that no file can take: a folder, a device, a pipe. Worth asking before hours of work.

    Args:
        paths: where something is to be written; None: it is not.

    Raises:
        ValueError: one is such a place.
    """
    for path in paths:
        if path is not None and path.exists() and not path.is_file():
            raise ValueError(f"{path} is there and is no file: give another name")


@contextmanager
def atomic_file(path: Path) -> Iterator[Path]:
    """Yield a name to write to; what was written there takes the place of `path` if the block ends well.

    A file that is there already leaves its permissions to the new one; a link goes on pointing to where it does.

    Raises:
        ValueError: what stands there is no file.
        OSError: the disk is full, among others; the message says what is missing.
    """
    require_file(path)
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield draft
        if path.exists():
            shutil.copymode(path, draft)
        _sync(draft)
        draft.replace(path)
        _sync(path.parent)
    except OSError as error:
        if error.errno in FULL:
            raise no_room(path, draft, None, os.strerror(error.errno)) from error
        raise
    finally:
        draft.unlink(missing_ok=True)


@contextmanager
def locked(path: Path, taken: str | None = None) -> Iterator[None]:
    """Inside, no other process is in a block of the same lock.

    Args:
        path: of the lock, a file that stays. The system opens the lock when its process ends, however that comes about.
        taken: what to say where somebody is; None: wait for them.

    Raises:
        ValueError: somebody is, and is not waited for.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX if taken is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ValueError(taken) from error
        yield


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, with the line ends that it has.

    Raises:
        OSError: the disk is full, among others.
    """
    with atomic_file(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """The same of lines that have no ends yet."""
    write_text(path, "".join(f"{line}\n" for line in lines))


def write_json(path: Path, value: Any) -> None:
    """Write what `json` knows to a file that people can read, too.

    Raises:
        OSError: the disk is full, among others.
    """
    write_text(path, json.dumps(value, ensure_ascii=False, indent=1) + "\n")


def read_json(path: Path) -> Any:
    """What `write_json` wrote.

    Raises:
        ValueError: the file is damaged.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): copy it anew, or remove it") from error


def sweep_drafts(folder: Path) -> list[Path]:
    """Remove what killed processes have left half written in a folder and below it; gives what went.

    A draft goes when no process has its writer's number, when it is older than a day, and when the number is our own:
    this is called before anything is written, and in containers every start has the same number.
    """
    swept = []
    for draft in sorted(folder.rglob(".*.part")):
        owner = _DRAFT.fullmatch(draft.name)
        with suppress(FileNotFoundError):  # its writer has just finished
            if owner and (_is_gone(int(owner[1])) or time.time() - draft.lstat().st_mtime > _ABANDONED):
                if draft.is_dir():
                    shutil.rmtree(draft, ignore_errors=True)
                else:
                    draft.unlink()
                swept.append(draft)
    return swept


def _is_gone(pid: int) -> bool:
    if pid == os.getpid():
        return True
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return True
    except PermissionError:  # it lives, and is somebody else's
        return False
    return False


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
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=f".{os.getpid()}.part", dir=path.parent))
    try:
        yield draft
        draft.chmod(0o755)  # mkdtemp makes it unreadable to others
        put_in_place(draft, path)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
