import bz2
import codecs
import gzip
import lzma
import re
import zipfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.dataset.text import ParallelFiles, ParallelText, read_parallel


@pytest.fixture
def files(tmp_path: Path) -> ParallelFiles:
    return ParallelFiles(tmp_path / "text.ja", tmp_path / "text.en")


def write(files: ParallelFiles, src: bytes, tgt: bytes) -> ParallelFiles:
    files.src.write_bytes(src)
    files.tgt.write_bytes(tgt)
    return files


@pytest.mark.parametrize("odd", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\r"])
def test_only_a_newline_ends_a_line(odd: str, files: ParallelFiles) -> None:
    text = read_parallel(write(files, f"古い{odd}都\n橋\n".encode(), b"an old capital\nbridge\n"))
    assert text == ParallelText([f"古い{odd}都", "橋"], ["an old capital", "bridge"])


def test_windows_line_ends_and_a_byte_order_mark_are_no_text(files: ParallelFiles) -> None:
    text = read_parallel(write(files, codecs.BOM_UTF8 + "都\r\n橋\r\n".encode(), b"capital\nbridge\n"))
    assert text == ParallelText(["都", "橋"], ["capital", "bridge"])


def test_empty_lines_count_and_the_last_line_needs_no_newline(files: ParallelFiles) -> None:
    text = read_parallel(write(files, "都\n\n橋".encode(), b"capital\nriver\n\n"))
    assert text == ParallelText(["都", "", "橋"], ["capital", "river", ""])


def test_differing_line_counts_are_refused_with_both(files: ParallelFiles) -> None:
    write(files, "都\n橋\n".encode(), b"capital\nbridge\nriver\n")
    with pytest.raises(ValueError, match=rf"^{files.src} has 2 lines but {files.tgt} has 3: line i of one must"):
        read_parallel(files)


@pytest.mark.parametrize(
    ("data", "line", "byte"),
    [
        (b"one\ntwo\n\xff\n", 3, "0xff"),
        (codecs.BOM_UTF8 + b"\x80\n", 1, "0x80"),
        ("一\n二\n三".encode() + b"\xe4\xb8", 3, "0xe4"),  # cut within a character
        ("一\n二\n".encode("euc_jp"), 1, "0xb0"),
        ("一\n".encode("utf-16-le") + b"\xff", 2, "0xff"),
    ],
)
def test_what_is_not_utf8_is_refused_with_its_line(data: bytes, line: int, byte: str, files: ParallelFiles) -> None:
    write(files, b"1\n2\n3\n", data)
    message = f"{files.tgt}, line {line}: byte {byte} is not UTF-8; save the file as UTF-8"
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        read_parallel(files)


@pytest.mark.parametrize("nothing", [b"", b"\n", b" \n\t\n", codecs.BOM_UTF8])
def test_a_side_without_text_is_refused(nothing: bytes, files: ParallelFiles) -> None:
    with pytest.raises(ValueError, match=rf"^{files.tgt} holds no text$"):
        read_parallel(write(files, "都\n".encode(), nothing))


def test_a_missing_file_is_refused(files: ParallelFiles) -> None:
    files.src.write_text("都\n")
    with pytest.raises(ValueError, match=rf"^no such file: {files.tgt}$"):
        read_parallel(files)


def test_sides_of_different_length_are_no_parallel_text() -> None:
    with pytest.raises(ValueError, match="2 source lines but 1 target lines"):
        ParallelText(["都", "橋"], ["capital"])


sentences = st.text(st.characters(codec="utf-8", exclude_characters="\n\r\ufeff"))


@given(pairs=st.lists(st.tuples(sentences, sentences), min_size=1))
def test_what_was_written_is_read(pairs: list[tuple[str, str]], tmp_path_factory: pytest.TempPathFactory) -> None:
    pairs.append(("都", "capital"))
    folder = tmp_path_factory.mktemp("text")
    files = ParallelFiles(folder / "ja", folder / "en")
    src, tgt = (list(side) for side in zip(*pairs, strict=True))
    write(files, "\n".join(src).encode(), ("\n".join(tgt) + "\n").encode())
    assert read_parallel(files) == ParallelText(src, tgt)


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (gzip.compress("都\n".encode(), mtime=0), "compressed (gzip): unpack it first"),
        (lzma.compress("都\n".encode()), "compressed (xz): unpack it first"),
        (bz2.compress("都\n".encode()), "compressed (bzip2): unpack it first"),
        ("都\n".encode("utf-16"), "UTF-16: save it as UTF-8"),
        (codecs.BOM_UTF16_BE + "都\n".encode("utf-16-be"), "UTF-16: save it as UTF-8"),
    ],
    ids=["gzip", "xz", "bzip2", "utf-16", "utf-16-be"],
)
def test_what_is_often_given_for_text_is_named(data: bytes, kind: str, files: ParallelFiles) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(f'{files.tgt} is {kind}')}$"):
        read_parallel(write(files, b"1\n", data))


def test_a_zip_archive_is_named(files: ParallelFiles) -> None:
    write(files, b"1\n", b"")
    with zipfile.ZipFile(files.tgt, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("text.en", "都は古い\n" * 9)
    with pytest.raises(ValueError, match=f"^{re.escape(str(files.tgt))} is a zip archive: unpack it first$"):
        read_parallel(files)


def test_text_that_begins_like_a_compressed_file_is_text(files: ParallelFiles) -> None:
    assert read_parallel(write(files, b"BZh\n", b"PK\x03\x04\n")).src == ["BZh"]
