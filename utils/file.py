"""Files that are either complete or absent: written under another name, synced, renamed."""

import errno
import fcntl
import hashlib
import json
import os
import re
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # the disk is full, or a quota or a limit on file size is reached
_PIDS = Path("/proc/self/ns/pid")  # on Linux: containers may share a host's name, but not its process numbers
_HOST = re.sub(r"[^\w-]", "-", f"{socket.gethostname()}-{_PIDS.stat().st_ino if _PIDS.exists() else ''}")
_DRAFT = re.compile(r"\..+?\.(?:([\w-]+)@)?(\d+)\.part")
STDOUT = ("-", "/dev/stdout")  # output files of these names are standard output
_LONGEST_NAME = 200  # bytes; file systems have 255, of which a run's date and the drafts of its files take some
_ABANDONED = 24 * 3600.0  # seconds after which a draft counts as abandoned, even if a process has its pid


def draft_suffix() -> str:
    """Return what the names of this process's drafts end with, by which `sweep_drafts` recognises leftovers."""
    return f".{_HOST}@{os.getpid()}.part"


def sync(path: Path) -> None:
    """Wait until what was written to a file, or into a folder, is on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def from_here(path: Path) -> Path:
    """Return a path as one would type it: relative if it is below the working directory, absolute if not."""
    path, here = path.absolute(), Path.cwd()
    return path.relative_to(here) if path.is_relative_to(here) else path


def require_folder_name(name: str) -> None:
    """Refuse a name that a folder cannot safely be called by."""
    if not re.fullmatch(r"\w[\w.-]*", name):
        raise ValueError(f"name={name}: give letters, digits, - and _; folders are named after it")
    if (n_bytes := len(name.encode())) > _LONGEST_NAME:
        raise ValueError(
            f"name={name[:20]}...: {n_bytes} bytes are too long for a folder: give {_LONGEST_NAME} or less"
        )


def require_outputs(outputs: Mapping[str, Path | None], inputs: Mapping[str, Path | None] | None = None) -> None:
    """Refuse outputs that no file can be written to, that are an input, or one another; worth checking before hours.

    Paths are given by the names of their options, and compared with links followed.
    """
    taken = {path.resolve(): name for name, path in (inputs or {}).items() if path is not None and path.exists()}
    for name, path in outputs.items():
        if path is None or str(path) in STDOUT:
            continue
        if path.exists() and not path.is_file():
            raise ValueError(f"{path} exists and is not a file: give another name")
        if other := taken.get(path.resolve()):
            raise ValueError(f"{name} {path} is the file of {other}: give another name")
        taken[path.resolve()] = name


def require_writable(folder: Path, remedy: str) -> None:
    """Refuse a folder that no file can be written to, creating it if need be; `remedy` ends the message."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise ValueError(f"cannot write to {folder} ({error.strerror}): {remedy}") from error


@contextmanager
def atomic_file(path: Path, size: int | None = None, draft: Path | None = None) -> Iterator[Path]:
    """Yield a name to write to; what was written there replaces `path` if the block succeeds.

    The permissions of an existing file are kept; a link still points to the same place. `size` is the number of bytes
    of the complete file, if known, for the message where the disk is full. Standard output gets it when it is complete.
    `draft` is the name, in the same folder; what was written there stays if the block fails.
    """
    if str(path) in STDOUT:
        with tempfile.TemporaryDirectory() as folder:
            yield (draft := Path(folder) / "output")
            sys.stdout.flush()
            sys.stdout.buffer.write(draft.read_bytes())
        return
    require_outputs({"output": path})
    path = path.resolve()
    path.parent.mkdir(parents=True, exist_ok=True)
    is_kept, draft = draft is not None, draft or path.with_name(f".{path.name}{draft_suffix()}")
    try:
        yield draft
        if path.exists():
            shutil.copymode(path, draft)
        sync(draft)
        draft.replace(path)
        sync(path.parent)
    except OSError as error:
        if error.errno not in FULL:
            raise
        is_there = draft.exists() and not is_kept
        written = draft.stat().st_blocks * 512 if is_there else 0  # free soon, for the draft will be removed
        free = shutil.disk_usage(path.parent).free + written
        need = f"more than {written / 2**20:.2f}" if size is None else f"{size / 2**20:.2f}"
        raise OSError(
            f"no room for {path.name} ({os.strerror(error.errno)}): it needs {need} MiB, and {free / 2**20:.2f} MiB "
            f"are free in {path.parent}: make room there, or raise the limit; files written earlier are intact"
        ) from error
    finally:
        if not is_kept:
            draft.unlink(missing_ok=True)


@cache
def spooled(pipe: Path, folder: Path) -> Path:
    """Return a file in a folder with what a pipe gives, named by its content: a text is read more than once."""
    if os.environ.get("WORLD_SIZE", "1") != "1":
        raise ValueError(f"{pipe} is a pipe, which several processes cannot all read: give a file")
    folder.mkdir(parents=True, exist_ok=True)
    draft = folder / f".pipe{draft_suffix()}"
    with pipe.open("rb") as source, draft.open("w+b") as file:
        shutil.copyfileobj(source, file)
        file.seek(0)
        kept = folder / hashlib.file_digest(file, "sha256").hexdigest()[:16]
    draft.replace(kept)
    return kept


class BusyError(ValueError):
    """Another process holds a lock."""


@contextmanager
def locked(path: Path, taken: str | None = None) -> Iterator[int]:
    """Hold a lock, which is yielded as a file descriptor: no other process is in a block of the same lock meanwhile.

    Args:
        path: of the lock, a file that stays. The system releases the lock when its process ends, however it ends, and
            so does any other that was given the descriptor.
        taken: message of the `BusyError` if another process holds the lock; None: say so, and wait for it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if taken is not None:
                raise BusyError(taken) from error
            print(f"waiting for another process, which holds {path}", file=sys.stderr, flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock.fileno()


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, with its line endings unchanged."""
    with atomic_file(path) as draft:
        draft.write_text(text, encoding="utf-8", newline="")


def write_lines(path: Path, lines: Iterable[str]) -> None:
    """Write lines, given without line endings, as UTF-8."""
    write_text(path, "".join(f"{line}\n" for line in lines))


def write_json(path: Path, value: Any, indent: int = 1) -> None:
    """Write a value as JSON that people can read, too; 0: without spaces before the lines, of which a list has many."""
    write_text(path, json.dumps(value, ensure_ascii=False, indent=indent) + "\n")


def read_json(path: Path) -> Any:
    """Read what `write_json` wrote."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): copy it again, or remove it") from error


def sweep_drafts(folder: Path) -> list[Path]:
    """Remove what killed processes have left half-written in a folder and below it; return what was removed.

    A draft of this host is removed if no process has its writer's pid, or if the pid is our own: this is called before
    anything is written. A draft of another host or container, on a shared disk, is removed when it is older than a day,
    as is any other.
    """
    swept = []
    for draft in sorted(folder.rglob(".*.part")):
        owner = _DRAFT.fullmatch(draft.name)
        with suppress(FileNotFoundError):  # its writer has just finished
            if owner and (
                (owner[1] in (None, _HOST) and _is_gone(int(owner[2])))
                or time.time() - draft.lstat().st_mtime > _ABANDONED
            ):
                if draft.is_dir():
                    shutil.rmtree(draft, ignore_errors=True)
                else:
                    draft.unlink()
                swept.append(draft)
    return swept


def _is_gone(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except (OSError, OverflowError) as error:
        return not isinstance(error, PermissionError)  # of another user's process
    return pid == os.getpid()


@contextmanager
def atomic_folder(path: Path) -> Iterator[Path]:
    """Yield an empty folder to fill; it becomes `path` if the block succeeds.

    If `path` exists already (because another process was faster, say), it stays.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{path.name}.", suffix=draft_suffix(), dir=path.parent))
    try:
        yield draft
        draft.chmod(0o755)  # mkdtemp makes it unreadable to other users
        for file in (*draft.rglob("*"), draft):
            sync(file)
        try:
            draft.rename(path)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
        sync(path.parent)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
