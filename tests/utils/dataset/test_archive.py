import gzip
import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest

from utils.dataset.download import take

Files = dict[str, bytes]
Write = Callable[[Path, Files], Path]


def files_in(folder: Path) -> Files:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tar_of(path: Path, *members: tarfile.TarInfo) -> Path:
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            tar.addfile(member, io.BytesIO(b"x" * member.size))
    return path


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname, info.size = kind, link, 1 if kind == tarfile.REGTYPE else 0
    return info


@pytest.fixture
def into(tmp_path: Path) -> Path:
    folder = tmp_path / "into"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", ["toy.tar", "toy.tar.gz", "toy.tar.xz", "toy.tar.bz2"])
def test_only_the_wanted_files_leave_an_archive(
    name: str, tmp_path: Path, into: Path, toy_files: Files, write_tar: Write
) -> None:
    archive = write_tar(tmp_path / name, toy_files | {"README": b"read me"})
    take(archive, toy_files.keys(), into)
    assert files_in(into) == toy_files


@pytest.mark.parametrize("top", [".", "data", "toy-1.0/data"])
def test_a_folder_gives_the_same_from_its_top_or_below(
    top: str, tmp_path: Path, into: Path, toy_files: Files, write_tree: Write
) -> None:
    write_tree(tmp_path / "given" / top, toy_files | {"README": b"read me"})
    take(tmp_path / "given", toy_files.keys(), into)
    assert files_in(into) == toy_files


def test_files_that_are_gzipped_by_themselves_are_decompressed(
    tmp_path: Path, into: Path, toy_files: Files, write_tar: Write, write_tree: Write
) -> None:
    zipped = {f"{path}.gz": gzip.compress(content) for path, content in toy_files.items()}
    take(write_tree(tmp_path / "folder", zipped), toy_files.keys(), into)
    assert files_in(into) == toy_files
    (tmp_path / "again").mkdir()
    take(write_tar(tmp_path / "toy.tar", zipped), toy_files.keys(), tmp_path / "again")
    assert files_in(tmp_path / "again") == toy_files


def test_a_longer_file_name_is_another_file(tmp_path: Path, into: Path, write_tar: Write) -> None:
    take(write_tar(tmp_path / "toy.tar.gz", {"my-train.ja": b"1", "train.ja.000": b"2"}), ["train.ja"], into)
    assert files_in(into) == {}


@pytest.mark.parametrize("suffix", [".tar.gz", ".tar.xz"])
@pytest.mark.parametrize("share", [0.05, 0.5, 0.95])
def test_a_truncated_archive_is_refused_in_one_line(
    suffix: str, share: float, tmp_path: Path, into: Path, write_tar: Write
) -> None:
    noise = {"orig/a": Path(__file__).read_bytes(), "orig/b": bytes(range(256)) * 64}
    archive = write_tar(tmp_path / f"toy{suffix}", noise)
    archive.write_bytes(archive.read_bytes()[: int(share * archive.stat().st_size)])
    with pytest.raises(ValueError, match=r"^.*toy\.tar\... is truncated, damaged or not a tar archive; get it again$"):
        take(archive, noise.keys(), into)


def test_what_is_no_archive_is_refused_in_one_line(tmp_path: Path, into: Path) -> None:
    (tmp_path / "page.html").write_text("<html>404</html>")
    with pytest.raises(ValueError, match=r"page\.html is truncated, damaged or not a tar archive; get it again$"):
        take(tmp_path / "page.html", ["train.ja"], into)
    with pytest.raises(ValueError, match=r"^no such archive or folder: .*nowhere\.tar\.gz$"):
        take(tmp_path / "nowhere.tar.gz", ["train.ja"], into)


def test_what_is_no_gzip_is_refused_in_one_line(tmp_path: Path, into: Path, write_tree: Write) -> None:
    given = write_tree(tmp_path / "given", {"train.ja.gz": "都\n".encode()})
    with pytest.raises(ValueError, match=r"given is truncated, damaged or not a tar archive; get it again$"):
        take(given, ["train.ja"], into)


@pytest.mark.parametrize(
    "evil",
    [
        member("../train.ja"),
        member("toy/../../train.ja"),
        member("toy/device", tarfile.CHRTYPE),
        member("toy/link", tarfile.SYMTYPE, "../../../etc/passwd"),
        member("toy/link", tarfile.SYMTYPE, "/etc/passwd"),
        member("toy/link", tarfile.LNKTYPE, "../../etc/passwd"),
    ],
    ids=lambda info: f"{info.name} {info.linkname}".strip(),
)
def test_an_archive_with_a_member_that_reaches_outside_is_refused(
    evil: tarfile.TarInfo, tmp_path: Path, into: Path
) -> None:
    archive = tar_of(tmp_path / "toy.tar.gz", evil, member("toy/train.ja"))
    before = files_in(tmp_path)
    with pytest.raises(ValueError, match=r"toy\.tar\.gz is unsafe: its member '.*' leaves the folder or is a device"):
        take(archive, ["train.ja"], into)
    assert files_in(tmp_path) == before


@pytest.mark.parametrize("kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.DIRTYPE])
def test_a_wanted_file_must_be_a_plain_file(kind: bytes, tmp_path: Path, into: Path) -> None:
    archive = tar_of(tmp_path / "toy.tar.gz", member("toy/secret"), member("toy/train.ja", kind, "secret"))
    with pytest.raises(ValueError, match=r"is unsafe: its member 'toy/train\.ja' is not a regular file"):
        take(archive, ["train.ja"], into)
    assert files_in(into) == {}


def test_an_absolute_path_is_not_followed(tmp_path: Path, into: Path) -> None:
    outside = tmp_path / "outside" / "train.ja"
    take(tar_of(tmp_path / "toy.tar.gz", member(str(outside))), ["train.ja"], into)
    assert files_in(into) == {"train.ja": b"x"}
    assert not outside.exists()


def test_of_equal_names_in_a_folder_the_nearest_is_taken(tmp_path: Path, into: Path, write_tree: Write) -> None:
    files = {"data/old/train.ja": b"3", "old/train.ja": b"2", "train.ja": b"1"}
    take(write_tree(tmp_path / "given", files), ["train.ja"], into)
    assert files_in(into) == {"train.ja": b"1"}


def test_a_plain_file_comes_before_a_gzipped_one(tmp_path: Path, into: Path, write_tree: Write) -> None:
    take(write_tree(tmp_path / "given", {"train.ja.gz": gzip.compress(b"2"), "train.ja": b"1"}), ["train.ja"], into)
    assert files_in(into) == {"train.ja": b"1"}
