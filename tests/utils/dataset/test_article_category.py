import sys
from collections import Counter
from pathlib import Path

import pytest

from utils.dataset import labelled
from utils.dataset.labelled import category, split_articles, write_categories
from utils.dataset.monolingual import Document, MonolingualConfig, MonolingualCorpus, read_documents

DOCUMENTS = [Document(f"{kind}{i:05}", 1 + (7 * i) % 5) for i in range(40) for kind in ("BDS", "HST")]


def lines(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").split("\n")[:-1]


@pytest.fixture
def text(tmp_path: Path) -> Path:
    """Each line names its article."""
    path = tmp_path / "text"
    path.write_text("".join(f"{document.name} {i}\n" for document in DOCUMENTS for i in range(document.n_lines)))
    return path


def test_no_article_has_sentences_in_two_splits_and_each_sentence_its_category(text: Path, tmp_path: Path) -> None:
    counts = write_categories(text, DOCUMENTS, 0.2, tmp_path / "out")
    articles, sentences = list[set[str]](), list[str]()
    for split in ("train", "dev", "test"):
        found, labels = (lines(tmp_path / "out" / f"{split}.{part}") for part in ("text", "labels"))
        assert labels == [line[:3] for line in found]
        assert counts[split] == Counter(labels)
        articles.append({line.split()[0] for line in found})
        sentences += found
    assert sorted(sentences) == sorted(lines(text))
    assert sum(map(len, articles)) == len(set[str]().union(*articles))
    for kind in ("BDS", "HST"):
        for split in ("dev", "test"):
            assert 0.15 < counts[split][kind] / sum(count[kind] for count in counts.values()) < 0.25  # type: ignore[index]


def test_the_split_is_random_and_always_the_same() -> None:
    splits = split_articles(DOCUMENTS, 0.2)
    assert split_articles(DOCUMENTS, 0.2) == splits
    held = [i for i, split in enumerate(splits) if split != "train"]
    assert min(held) < 20
    assert max(held) > 60


def test_empty_lines_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("a\n \n\nb\n" * 5)
    documents = [Document(f"BDS{i}", 4) for i in range(5)]
    counts = write_categories(tmp_path / "text", documents, 0.24, tmp_path / "out")
    assert [counts[split].total() for split in ("train", "dev", "test")] == [6, 2, 2]
    assert lines(tmp_path / "out" / "dev.text") == ["a", "b"]


def test_of_few_articles_the_largest_stays_in_train() -> None:
    assert split_articles([Document("BDS1", 9)], 0.2) == ["train"]
    assert split_articles([Document("BDS1", 90), Document("BDS2", 1)], 0.05)[0] == "train"


def test_kftts_fifteen_categories_are_in_every_split(shared_data: Path) -> None:
    documents = read_documents(shared_data / "kyoto-train.docs")
    sizes = {split: Counter[str]() for split in ("train", "dev", "test")}
    for document, split in zip(documents, split_articles(documents, 0.02), strict=True):
        sizes[split][category(document)] += document.n_lines
    total = sum(sizes.values(), Counter())
    assert len(total) == 15
    for split in ("dev", "test"):
        assert all(0.01 < sizes[split][name] / total[name] < 0.05 for name in total), sizes[split]


@pytest.mark.parametrize("share", [0.0, 0.25, float("nan")])
def test_a_share_that_leaves_too_little_is_refused(text: Path, tmp_path: Path, share: float) -> None:
    with pytest.raises(ValueError, match=rf"^share={share}: give dev, and test, more than 0 and less than 0\.25"):
        write_categories(text, DOCUMENTS, share, tmp_path / "out")


def test_a_split_without_text_is_refused_and_nothing_is_written(text: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^80 documents leave dev no text: give more documents, or a larger share$"):
        write_categories(text, DOCUMENTS, 1e-6, tmp_path / "out")
    assert not list((tmp_path / "out").glob("*"))


def test_the_command_writes_and_shows_the_numbers(
    text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[MonolingualConfig] = []

    def prepared(config: MonolingualConfig, _: object) -> MonolingualCorpus:
        asked.append(config)
        return MonolingualCorpus("kftt", "ja", text, text, text, tuple(DOCUMENTS), pre_tokenized=False)

    monkeypatch.setattr(labelled, "prepare_monolingual", prepared)
    folder = tmp_path / "out"
    options = ["--language", "en", "--documents", "x.docs", "--share", "0.2", "--folder", str(folder)]
    monkeypatch.setattr(sys, "argv", ["article_category", *options])
    labelled.main()
    assert (asked[0].corpus, asked[0].language, asked[0].documents) == ("kftt", "en", Path("x.docs"))
    rows = [line.split() for line in capsys.readouterr().out.splitlines()]
    n = {split: len(lines(folder / f"{split}.text")) for split in ("train", "dev", "test")}
    assert rows[0] == ["train", "dev", "test"]
    assert [row[0] for row in rows[1:3]] == ["BDS", "HST"]
    assert rows[3] == ["all", *(f"{n[split]:,}" for split in n)]


def test_the_corpus_and_its_archive_are_the_users(text: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[MonolingualConfig] = []

    def prepared(config: MonolingualConfig, _: object) -> MonolingualCorpus:
        asked.append(config)
        return MonolingualCorpus("tanaka", "ja", text, text, text, tuple(DOCUMENTS), pre_tokenized=False)

    monkeypatch.setattr(labelled, "prepare_monolingual", prepared)
    options = ["--corpus", "tanaka", "--archive", "x.tar", "--documents", "x.docs", "--share", "0.2"]
    monkeypatch.setattr(sys, "argv", ["article_category", *options, "--folder", str(tmp_path / "out")])
    labelled.main()
    assert asked == [MonolingualConfig("tanaka", "ja", Path("x.tar"), documents=Path("x.docs"))]
