from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from const.token import BOS_ID, EOS_ID, PAD_ID
from utils.dataset.batch import filling
from utils.dataset.ids import TokenArray
from utils.dataset.labelled import LabelledBatch, LabelledConfig, LabelledSampler, LabelledText, LabelNames
from utils.text.tokenizer import WordTokenizer

lengths = st.lists(st.integers(0, 9), min_size=1, max_size=30)


def quiet(_: str) -> None: ...


def text_of(lengths: list[int]) -> LabelledText:
    """Text i consists of the number 4 + i, as often as its length says, and has the label i."""
    return LabelledText(TokenArray.of([[4 + i] * n for i, n in enumerate(lengths)], 2**16), np.arange(len(lengths)))


def write(path: Path, *lines: str) -> Path:
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
    return path


@given(
    lengths=lengths,
    budget=st.integers(1, 60),
    multiple=st.sampled_from([1, 8]),
    max_tokens=st.one_of(st.none(), st.integers(3, 12)),
    epoch=st.integers(0, 2),
)
def test_an_epoch_has_each_text_once_with_its_label(
    lengths: list[int], budget: int, multiple: int, max_tokens: int | None, epoch: int
) -> None:
    made = LabelledSampler(text_of(lengths), budget, max_tokens, multiple=multiple).epoch(epoch)
    seen = []
    for i, batch in enumerate(made):
        assert batch.label.tolist() == made.rows(i).tolist()
        assert made.target_tokens(i) == len(batch.label) == len(batch.ids)
        assert len(batch.ids) == 1 or batch.ids.numel() <= budget
        assert batch.ids.shape[1] % multiple == 0
        for row, label in zip(batch.ids.tolist(), batch.label.tolist(), strict=True):
            n = min(lengths[label], 99 if max_tokens is None else max_tokens - 2)
            assert row == [BOS_ID, *[4 + label] * n, EOS_ID, *[PAD_ID] * (len(row) - n - 2)]
        seen += batch.label.tolist()
    assert sorted(seen) == list(range(len(lengths)))
    assert made.n_dropped == 0
    positions = [batch.ids.numel() for batch in made]
    assert positions[made.largest()] == max(positions)
    assert made.padding == pytest.approx(sum(int((b.ids == PAD_ID).sum()) for b in made) / sum(positions))


def test_order_depends_on_seed_and_epoch_alone() -> None:
    text = text_of([1 + i % 7 for i in range(60)])

    def epoch(seed: int, number: int) -> list[list[int]]:
        return [batch.label.tolist() for batch in LabelledSampler(text, 30, seed=seed).epoch(number)]

    sampler = LabelledSampler(text, 30, seed=1)
    sampler.epoch(3)
    assert [batch.label.tolist() for batch in sampler.epoch(0)] == epoch(1, 0)
    assert [batch.label.tolist() for batch in sampler.all()] == epoch(1, 0)
    for other in (epoch(1, 1), epoch(2, 0)):
        assert {frozenset(rows) for rows in other} != {frozenset(rows) for rows in epoch(1, 0)}


def test_a_limit_without_room_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^max_tokens=2 leaves no room for a text: give at least 3$"):
        LabelledSampler(text_of([1]), 9, 2).epoch(0)


def test_labels_are_numbered_in_sorted_order_and_kept(tmp_path: Path) -> None:
    train = write(tmp_path / "train", "寺", "old capital ", "Kyoto", "寺")
    names = LabelNames.of(train)
    assert tuple(names) == ("Kyoto", "old capital", "寺")
    assert names.numbers(train).tolist() == [2, 1, 0, 2]
    names.save(tmp_path / "labels.json")
    loaded = LabelNames.load(tmp_path / "labels.json")
    assert loaded == names
    assert loaded.numbers(write(tmp_path / "dev", "寺")).tolist() == [2]


def test_labels_that_cannot_be_used_are_refused_with_their_line(tmp_path: Path) -> None:
    names = LabelNames.of(write(tmp_path / "train", *(f"{i:02}" for i in range(25))))
    path = tmp_path / "dev"
    with pytest.raises(
        ValueError, match=rf"^{path}, line 2: label 'x' is not among the training text's: 00, .*19, \.\.\.$"
    ):
        names.numbers(write(path, "01", "x"))
    with pytest.raises(ValueError, match=rf"^{path}, line 2 has no label: each line of the text needs one$"):
        names.numbers(write(path, "01", " ", "02"))
    with pytest.raises(ValueError, match=rf"^{path} has only one label, 'a': give at least two$"):
        LabelNames.of(write(path, "a", "a"))


def test_texts_are_encoded_with_their_labels(tmp_path: Path) -> None:
    text = write(tmp_path / "x.text", "都 寺", "", "橋 都")
    labels = write(tmp_path / "x.labels", "b", "a", "b")
    tokenizer = WordTokenizer(["都", "寺"], lowercase=False)
    found = LabelledText.cached(text, labels, LabelNames.of(labels), tokenizer, quiet, tmp_path / "corpus")
    assert [found.lines[i].tolist() for i in range(3)] == [[4, 5], [], [1, 4]]
    assert found.labels.tolist() == [1, 0, 1]
    write(labels, "b", "a")
    with pytest.raises(
        ValueError, match=rf"^{text} has 3 lines but {labels} has 2: line i of one must be the label of"
    ):
        LabelledText.cached(text, labels, LabelNames.of(labels), tokenizer, quiet, tmp_path / "corpus")


def test_a_batch_goes_to_a_device_whole() -> None:
    batch = LabelledBatch(torch.tensor([[2, 4, 3]]), torch.tensor([1])).to(torch.device("meta"))
    assert (batch.ids.device.type, batch.label.device.type) == ("meta", "meta")


def test_a_text_that_is_missing_is_named_with_what_writes_such_texts(tmp_path: Path) -> None:
    files = [tmp_path / name for name in "abcdef"]
    for file in files:
        file.write_text("x\n")
    config = LabelledConfig(*files)
    assert config.pairs() == ((files[0], files[1]), (files[2], files[3]), (files[4], files[5]))
    files[3].unlink()
    with pytest.raises(ValueError, match=rf"^no such file: {files[3]}; python -m utils\.dataset\.labelled"):
        config.pairs()


def test_padding_fills_nothing() -> None:
    ids = torch.tensor([[BOS_ID, 4, EOS_ID], [BOS_ID, PAD_ID, PAD_ID]])
    assert filling(LabelledBatch(ids, torch.tensor([1, 0]))) == (4, 6)


def test_the_fingerprint_is_of_texts_and_labels(tmp_path: Path) -> None:
    config = LabelledConfig(*(write(tmp_path / f"{i}", "a") for i in range(6)))
    prints = {config.fingerprint(tmp_path), config.fingerprint(tmp_path)}
    for i in range(6):
        write(tmp_path / f"{i}", "b")
        prints.add(config.fingerprint(tmp_path))
    assert len(prints) == 7
