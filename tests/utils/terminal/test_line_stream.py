import os
import threading
from collections.abc import Iterator
from io import BytesIO
from itertools import repeat
from pathlib import Path

import pytest

from utils.terminal.input import LineStream, count_lines, in_chunks, paired


def chunks_of(content: bytes, most: int = 3) -> list[list[str]]:
    stream = LineStream(BytesIO(content))
    return list(in_chunks((line.decode() for line in stream), stream.is_ready, most))


@pytest.mark.parametrize(
    "content", [b"", b"a\nb\n", b"a\nb", b"\n\n", b"\n", "a\u2028b\r\nc\x85\n".encode(), b"a" * 99]
)
def test_lines_are_those_of_a_file(content: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    assert list(LineStream(BytesIO(content))) == list(BytesIO(content))
    monkeypatch.setattr("utils.terminal.input._CHUNK", 1)  # a line may come in many pieces
    assert list(LineStream(BytesIO(content))) == list(BytesIO(content))


def test_a_lot_has_at_most_so_many() -> None:
    assert [len(chunk) for chunk in chunks_of(b"a\n" * 7)] == [3, 3, 1]
    assert [len(chunk) for chunk in chunks_of(b"a\n" * 6)] == [3, 3]
    assert chunks_of(b"") == []


def test_of_very_many_lines_few_are_held() -> None:
    taken = 0

    def endless() -> Iterator[str]:
        nonlocal taken
        for line in repeat("寺"):
            taken += 1
            yield line

    chunks = in_chunks(endless(), lambda: True, 1000)
    for n in range(1, 100):
        assert len(next(chunks)) == 1000
        assert taken == n * 1000


@pytest.fixture
def pipe() -> Iterator[tuple[LineStream, int]]:
    reader, writer = os.pipe()
    with os.fdopen(reader, "rb") as file:
        yield LineStream(file), writer


def test_what_is_there_comes_at_once_and_nothing_is_waited_for(pipe: tuple[LineStream, int]) -> None:
    stream, writer = pipe
    chunks = in_chunks((line.decode() for line in stream), stream.is_ready, 3)
    os.write(writer, b"a\n")
    assert next(chunks) == ["a\n"]
    os.write(writer, b"b\nc\nd\ne\nhal")
    assert next(chunks) == ["b\n", "c\n", "d\n"]
    assert next(chunks) == ["e\n"]
    os.write(writer, b"f\ng\n")
    assert next(chunks) == ["half\n", "g\n"]
    os.write(writer, b"last")
    os.close(writer)
    assert list(chunks) == [["last"]]


def test_a_pipe_that_is_always_full_is_read_in_full_lots(pipe: tuple[LineStream, int]) -> None:
    stream, writer = pipe

    def fill() -> None:
        with os.fdopen(writer, "wb") as file:
            file.writelines(b"%d\n" % i for i in range(200_000))

    thread = threading.Thread(target=fill)
    thread.start()
    chunks = list(in_chunks((line.decode() for line in stream), stream.is_ready, 100))
    thread.join()
    assert [line for chunk in chunks for line in chunk] == [f"{i}\n" for i in range(200_000)]
    assert len(chunks) < 2_200


def test_what_is_before_a_wrong_line_comes_first() -> None:
    def lines() -> Iterator[str]:
        yield from ("a", "b", "c", "d")
        raise ValueError("line 5")

    chunks = in_chunks(lines(), lambda: True, 3)
    assert [next(chunks), next(chunks)] == [["a", "b", "c"], ["d"]]
    with pytest.raises(ValueError, match="line 5"):
        next(chunks)


@pytest.mark.parametrize(("content", "n"), [(b"", 0), (b"a", 1), (b"a\n", 1), (b"\n\nb", 3), (b"a\n" * 2**20, 2**20)])
def test_lines_are_counted_as_they_are_read(content: bytes, n: int, tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(content)
    assert count_lines(tmp_path / "a") == n


def test_a_pipe_is_not_read_to_count_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert count_lines(tmp_path / "pipe") is None


def test_lines_are_paired_across_lots() -> None:
    chunks = [["a", "b"], ["c"]]
    assert list(paired(chunks, iter("xyz"), ("A", "B"))) == [[("a", "x"), ("b", "y")], [("c", "z")]]
    assert list(paired([], iter([]), ("A", "B"))) == []


@pytest.mark.parametrize(
    ("n_others", "pairs", "message"),
    [(0, 0, "B ends after 0 lines, A has more"), (2, 2, "B ends after 2"), (4, 3, "A ends after 3 lines, B has more")],
)
def test_a_side_that_ends_first_is_named_after_the_pairs_before(n_others: int, pairs: int, message: str) -> None:
    found: list[list[tuple[str, str]]] = []
    chunks = paired([["a", "b"], ["c"]], iter("wxyz"[:n_others]), ("A", "B"))
    with pytest.raises(ValueError, match=message):
        found.extend(chunks)
    assert sum(len(chunk) for chunk in found) == pairs
