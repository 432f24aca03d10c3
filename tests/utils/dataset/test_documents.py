from itertools import count
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.dataset.ids import TokenArray
from utils.dataset.monolingual import Document, DocumentTokens, read_documents

lines = st.lists(st.integers(0, 3), min_size=1, max_size=6)


def test_names_and_counts_are_read_in_order(tmp_path: Path) -> None:
    path = tmp_path / "kyoto.docs"
    path.write_text("BDS00001\t62\nthe old capital  7\n\nBDS00005 0\n")
    assert read_documents(path) == (("BDS00001", 62), ("the old capital", 7), ("BDS00005", 0))


@pytest.mark.parametrize("line", ["62", "BDS00001", "BDS00001 -3", "BDS00001 ２", "BDS00001 many"])
def test_what_is_no_document_is_refused_with_its_line(tmp_path: Path, line: str) -> None:
    path = tmp_path / "kyoto.docs"
    path.write_text(f"BDS00001 62\n{line}\n")
    with pytest.raises(ValueError, match=rf"^{path}, line 2: '{line}' is not the name of a document and its number"):
        read_documents(path)


@given(documents=st.lists(lines, min_size=1, max_size=6))
def test_sentences_stand_in_their_documents_and_empty_lines_in_none(documents: list[list[int]]) -> None:
    """Line i has the number 4 + i, as often as its length says."""
    lengths = [n for document in documents for n in document]
    array = TokenArray.of([[4 + i] * n for i, n in enumerate(lengths)], 2**16)
    text = DocumentTokens.of(array, [Document("x", len(document)) for document in documents])
    found = []
    for begin, end in zip(text.bounds[:-1], text.bounds[1:], strict=True):
        found.append([array[row].tolist() for row in text.rows[begin:end]])
    numbered = count(4)
    expected = [[[number] * n for n in document if (number := next(numbered)) and n] for document in documents]
    assert found == [document for document in expected if document]
    assert text.n_sentences == sum(map(len, found))
    assert text.lengths.tolist() == [n for n in lengths if n]
    assert text.document.tolist() == [number for number, document in enumerate(found) for _ in document]
    if text.n_sentences:
        ids, sizes = text.gather(text.document[::-1] * 0 + text.n_sentences - 1)
        assert sizes.tolist() == [lengths[text.rows[-1]]] * text.n_sentences
        assert set(ids.tolist()) == {4 + int(text.rows[-1])}


def test_the_articles_of_kftt_make_up_its_training_text(shared_data: Path) -> None:
    documents = read_documents(shared_data / "kyoto-train.docs")
    assert (len(documents), sum(document.n_lines for document in documents)) == (14_066, 440_288)
