import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from utils.dataset.batch import Batch, BatchConfig, filling, padded, within_budget


def test_sequences_of_any_kind_become_one_tensor() -> None:
    assert padded([[5, 6], np.array([7], np.uint16), []]).tolist() == [[5, 6, 3], [7, 3, 0], [3, 0, 0]]
    assert padded([[5, 6], []], bos=True).tolist() == [[2, 5, 6, 3], [2, 3, 0, 0]]


def test_moving_a_batch_keeps_it() -> None:
    batch = Batch(padded([[5]]), padded([[6]], bos=True))
    moved = batch.to(torch.device("meta"))
    assert {side.device.type for side in moved} == {"meta"}
    assert [side.tolist() for side in batch.to(torch.device("cpu"))] == [[[5, 3]], [[2, 6, 3]]]


def test_target_tokens_are_what_is_predicted() -> None:
    assert Batch(padded([[5], [6]]), padded([[7, 8, 9], []], bos=True)).target_tokens == 5  # 7 8 9 </s>, </s>


def test_padding_fills_nothing() -> None:
    batch = Batch(padded([[5], [6, 7]]), padded([[7, 8, 9], []], bos=True))
    assert filling(batch) == (2 + 3 + 4 + 1, 6 + 8)


@pytest.mark.parametrize("name", ["tokens_per_batch", "accumulate", "max_tokens", "length_multiple"])
def test_a_batch_of_nothing_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0: give at least 1"):
        BatchConfig(**{name: 0})


@pytest.mark.parametrize("most", [0, -1])
def test_batches_of_no_sentence_are_refused(most: int) -> None:
    with pytest.raises(ValueError, match=f"^sentences_per_batch={most}: give at least 1, or null for no bound$"):
        BatchConfig(sentences_per_batch=most)


@pytest.mark.parametrize(("max_tokens", "multiple", "longest"), [(100, 1, 100), (97, 8, 104), (104, 8, 104)])
def test_a_learned_table_must_number_the_longest_sentence_and_its_padding(
    max_tokens: int, multiple: int, longest: int
) -> None:
    config = BatchConfig(max_tokens=max_tokens, length_multiple=multiple)
    config.require_positions(longest)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 (the whole message is compared)
        config.require_positions(longest - 1)
    assert str(caught.value) == (
        f"max_tokens={max_tokens} allows sentences of {longest} positions, padding included, and the learned table "
        f"has model.max_length={longest - 1}: give --model.max_length {longest}, or lower --batch.max_tokens"
    )


@given(st.lists(st.integers(1, 40), max_size=30), st.integers(1, 100))
def test_batches_within_a_budget_hold_each_sequence_once_longest_first(lengths: list[int], budget: int) -> None:
    batches = list(within_budget(lengths, budget))
    assert sorted(i for rows in batches for i in rows) == list(range(len(lengths)))
    assert all(len(rows) == 1 or len(rows) * max(lengths[i] for i in rows) <= budget for rows in batches)
    found = [lengths[i] for rows in batches for i in rows]
    assert found == sorted(found, reverse=True)


@pytest.mark.parametrize(
    ("config", "remedy"),
    [
        (BatchConfig(4096, 2, 128, sentences_per_batch=64), "say --batch.sentences_per_batch 32 --batch.accumulate 4"),
        (BatchConfig(4096, 2, 128, sentences_per_batch=1), "say --batch.tokens_per_batch 2048 --batch.accumulate 4"),
        (BatchConfig(129, 2, 128), "say --batch.tokens_per_batch 64 --batch.accumulate 4"),
        (BatchConfig(128, 2, 128), "a single pair fills it, so lower --batch.max_tokens (now 128)"),
    ],
)
def test_the_remedy_is_half_a_batch_at_once_or_shorter_pairs(config: BatchConfig, remedy: str) -> None:
    assert config.remedy().endswith(remedy)
