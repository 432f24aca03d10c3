import codecs
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.dataset import text as text_module
from utils.dataset.text import ParallelFiles, TextBlocks, read_blocks, read_parallel

lines = st.text(st.characters(codec="utf-8", exclude_characters="\n"), max_size=6)


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(text_module, "BLOCK", 3)


def written(folder: Path, src: bytes, tgt: bytes) -> ParallelFiles:
    files = ParallelFiles(folder / "src", folder / "tgt")
    for path, text in zip(files, (src, tgt), strict=True):
        path.write_bytes(text)
    return files


@given(
    pairs=st.lists(st.tuples(lines, lines), max_size=12),
    marks=st.tuples(st.booleans(), st.booleans()),
    newline=st.sampled_from(["\n", "\r\n"]),
    end=st.booleans(),
    data=st.data(),
)
def test_blocks_hold_what_the_files_hold(
    pairs: list[tuple[str, str]],
    marks: tuple[bool, bool],
    newline: str,
    end: bool,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    folder = tmp_path_factory.mktemp("text")
    sides = [newline.join([*side, "都"]) + newline * end for side in ([s for s, _ in pairs], [t for _, t in pairs])]
    files = written(folder, *(codecs.BOM_UTF8 * mark + side.encode() for side, mark in zip(sides, marks, strict=True)))
    whole, text = read_parallel(files), TextBlocks.whole(files)
    assert (list(text.src), list(text.tgt)) == (whole.src, whole.tgt)
    assert len(text) == len(text.src) == len(whole)

    kept = np.array(data.draw(st.lists(st.booleans(), min_size=len(whole), max_size=len(whole))))
    some = TextBlocks(files, text._ends, kept)
    some.save(folder)
    some = TextBlocks.load(files, folder)
    rows = np.flatnonzero(kept).tolist()
    assert len(some) == len(rows)
    blocks = [some.block(i) for i in range(some.n_blocks)]
    assert [line for block in blocks for line in block.src] == list(some.src) == [whole.src[i] for i in rows]
    assert [line for block in blocks for line in block.tgt] == list(some.tgt) == [whole.tgt[i] for i in rows]


@pytest.mark.parametrize(
    ("src", "tgt"),
    [
        (b"a\nb\n", b"a\n"),
        (b"a\nb\nc\n", b"a\nb\nc\nd\ne\nf\ng"),
        (b"a\nb\nc\nd", b""),
        (b"\n\n\n\n", b"a\nb\nc\nd\n"),
        (b"", b""),
        (b"a\nb\nc\nd\n\xff\n", b"a\nb\nc\nd\ne\n"),
    ],
)
def test_what_is_wrong_with_files_is_said_as_when_they_are_read_whole(tmp_path: Path, src: bytes, tgt: bytes) -> None:
    files = written(tmp_path, src, tgt)
    with pytest.raises(ValueError) as whole:  # noqa: PT011 (the two are compared)
        read_parallel(files)
    blocks = []
    with pytest.raises(ValueError) as fault:  # noqa: PT011, PT012
        for block in read_blocks(files):
            blocks.append(block)  # noqa: PERF402 (those before the fault)
    assert str(fault.value) == str(whole.value)
    assert all(len(block.src) == len(block.tgt) for block in blocks)  # what comes before it is whole
    files.tgt.unlink()
    with pytest.raises(ValueError, match=f"^no such file: {files.tgt}$"):
        list(read_blocks(files))
