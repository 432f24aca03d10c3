import numpy as np

from utils.dataset.text import pair_hashes, repeated


def test_what_stands_earlier_among_those_that_count_is_repeated() -> None:
    draw = np.random.default_rng(0)
    numbers, among = draw.integers(0, 300, 2000), draw.random(2000) < 0.8
    seen: set[int] = set()
    expected = []
    for number, counts in zip(numbers.tolist(), among.tolist(), strict=True):
        expected.append(counts and number in seen)
        if counts:
            seen.add(number)
    assert 0 < sum(expected) < 2000
    assert repeated(numbers.astype(np.uint64), among).tolist() == expected


def test_a_hash_is_of_both_sides_and_of_where_one_ends() -> None:
    pairs = [("ab", "c"), ("a", "bc"), ("", "abc"), ("c", "ab"), ("ab", "c"), ("ab", "c ")]
    hashes = pair_hashes(pairs).tolist()
    assert hashes[0] == hashes[4]
    assert len(set(hashes)) == 5
    assert pair_hashes(pairs).tolist() == hashes
