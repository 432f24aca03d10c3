from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.dataset.ids import TokenArray, TokenWriter


def ids_of(array: TokenArray) -> list[list[int]]:
    return [array[i].tolist() for i in range(len(array))]


def write(stem: Path, parts: list[list[list[int]]], vocab_size: int) -> None:
    with TokenWriter(stem, vocab_size) as writer:
        for part in parts:
            lengths = np.array([len(sequence) for sequence in part], np.int32)
            writer.write(np.array([i for sequence in part for i in sequence], np.int32), lengths)


sequences = st.lists(st.lists(st.integers(0, 2**17), max_size=6), max_size=6)


@given(sequences=sequences, spare=st.integers(1, 9))
def test_an_array_gives_back_what_it_got(sequences: list[list[int]], spare: int) -> None:
    vocab_size = max((i for sequence in sequences for i in sequence), default=0) + spare
    array = TokenArray.of(sequences, vocab_size)
    assert len(array) == len(sequences)
    assert ids_of(array) == sequences
    assert array.lengths.tolist() == [len(sequence) for sequence in sequences]


@pytest.mark.parametrize(("vocab_size", "dtype"), [(9, np.uint16), (2**16, np.uint16), (2**16 + 1, np.int32)])
def test_an_id_takes_two_bytes_where_the_vocabulary_allows_it(
    tmp_path: Path, vocab_size: int, dtype: type[np.integer]
) -> None:
    sequences = [[vocab_size - 1, 0], [], [vocab_size - 1]]
    write(tmp_path / "side", [sequences], vocab_size)
    for array in TokenArray.of(sequences, vocab_size), TokenArray.load(tmp_path / "side"):
        assert array[0].dtype == dtype
        assert ids_of(array) == sequences


@pytest.mark.parametrize("sequences", [[], [[]], [[], []], [[], [4], []]])
def test_empty_sequences_are_kept_on_disk_too(tmp_path: Path, sequences: list[list[int]]) -> None:
    write(tmp_path / "side", [sequences], 9)
    loaded = TokenArray.load(tmp_path / "side")
    assert ids_of(loaded) == sequences
    assert loaded.lengths.tolist() == [len(sequence) for sequence in sequences]


@given(sequences=sequences.filter(len), data=st.data())
def test_gathered_sequences_are_those_one_by_one(sequences: list[list[int]], data: st.DataObject) -> None:
    rows = data.draw(st.lists(st.integers(0, len(sequences) - 1), max_size=9))
    ids, lengths = TokenArray.of(sequences, 2**18).gather(np.array(rows, np.int32))
    assert ids.tolist() == [i for row in rows for i in sequences[row]]
    assert lengths.tolist() == [len(sequences[row]) for row in rows]


@given(parts=st.lists(sequences, max_size=4))
def test_what_is_written_part_by_part_is_one_array(
    parts: list[list[list[int]]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    stem = tmp_path_factory.mktemp("parts") / "side"
    write(stem, parts, 2**18)
    assert ids_of(TokenArray.load(stem)) == [sequence for part in parts for sequence in part]
    assert np.load(stem.with_suffix(".ids.npy")).tolist() == [i for part in parts for ids in part for i in ids]
