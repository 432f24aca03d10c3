"""Mistakes in one's own texts are noticed before hours go by."""

from dataclasses import replace
from pathlib import Path

import pytest

from utils.dataset.corpus import DataConfig, prepare_corpus, refuse_swapped, remark_on_tokens

ENGLISH = ["The dog runs in the park.", "A man is on the street.", "The woman is in a house, and the dog is not."]
GERMAN = ["Der Hund läuft in dem Park.", "Ein Mann ist auf der Straße.", "Die Frau ist in einem Haus, der Hund nicht."]
KINDS = ("dev", "test", "more")


def tokenized(lines: list[str]) -> list[str]:
    return [line.replace(".", " .").replace(",", " ,") for line in lines]


def write(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def tokenize_all(folder: Path) -> None:
    for file in folder.glob("*_??"):
        write(file, tokenized(file.read_text(encoding="utf-8").splitlines()))


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    """English to German; four texts of three lines, none of which is in two of them."""
    files = {}
    for kind in ("", "dev_", "test_", "more_"):
        lines = [f"{kind.removesuffix('_').capitalize()}, {line}" for line in (*ENGLISH, *GERMAN)]
        files[f"{kind}src"] = write(tmp_path / f"{kind}en", lines[:3])
        files[f"{kind}tgt"] = write(tmp_path / f"{kind}de", lines[3:])
    return DataConfig("files", "en", "de", **files)  # type: ignore[arg-type]


def remarks(data: DataConfig, root: Path) -> list[str]:
    said: list[str] = []
    remark_on_tokens(data, prepare_corpus(data, root), said.append)
    return said


def test_sides_are_told_by_their_words(data: DataConfig, tmp_path: Path) -> None:
    refuse_swapped(data, prepare_corpus(data, tmp_path))
    for kind in KINDS:
        src, tgt = getattr(data, f"{kind}_src"), getattr(data, f"{kind}_tgt")
        swapped = replace(data, **{f"{kind}_src": tgt, f"{kind}_tgt": src})
        corpus = prepare_corpus(swapped, tmp_path)
        with pytest.raises(
            ValueError, match=rf"^{tgt} has the words of .*: are --data.{kind}_src and --data.{kind}_tgt swapped\?$"
        ):
            refuse_swapped(swapped, corpus)


def test_one_side_in_another_language_is_not_taken_for_swapped_sides(data: DataConfig, tmp_path: Path) -> None:
    french = write(tmp_path / "fr", ["Le chien court.", "Un homme est dehors.", "La femme est là."])
    for odd in (replace(data, more_src=french), replace(data, more_tgt=french), replace(data, more_src=data.tgt)):
        refuse_swapped(odd, prepare_corpus(odd, tmp_path))


def test_text_is_tokenized_as_is_said(data: DataConfig, tmp_path: Path) -> None:
    assert remarks(data, tmp_path) == []
    tokenize_all(tmp_path)
    assert remarks(replace(data, pre_tokenized=True), tmp_path) == []


def test_tokenized_text_that_is_not_said_to_be_is_remarked_on(data: DataConfig, tmp_path: Path) -> None:
    tokenize_all(tmp_path)
    (said,) = remarks(data, tmp_path)
    assert said.startswith(f"{data.dev_tgt} looks tokenized: give --data.pre_tokenized true if ")


def test_plain_text_that_is_said_to_be_tokenized_is_remarked_on(data: DataConfig, tmp_path: Path) -> None:
    (said,) = remarks(replace(data, pre_tokenized=True), tmp_path)
    assert said.startswith(f"{data.dev_tgt} does not look tokenized, and BLEU splits it at spaces")


def test_further_text_that_is_tokenized_otherwise_is_remarked_on(data: DataConfig, tmp_path: Path) -> None:
    write(tmp_path / "more_en", tokenized(ENGLISH))
    (said,) = remarks(data, tmp_path)
    assert said.startswith(f"{data.more_src} looks tokenized otherwise than {data.dev_src}: ")


def test_a_published_corpus_is_what_it_is(data: DataConfig, tmp_path: Path) -> None:
    for language in ("ja", "en"):
        with pytest.raises(ValueError, match=r"^pre_tokenized=true is for your own texts, and corpus=embedded is none"):
            prepare_corpus(DataConfig("embedded", language, "ja", pre_tokenized=True), tmp_path)
    assert DataConfig("multi30k_tok", "en", "de").is_tokenized
    assert not DataConfig("multi30k", "en", "de").is_tokenized
    assert not replace(data, corpus="multi30k_tok").is_tokenized  # own files, whatever the corpus says
