import pytest
from hypothesis import given
from hypothesis import strategies as st

from utils.dataset.held_out import hold_out
from utils.dataset.parallel_text import ParallelText

sides = st.text("都京 ", max_size=3)
pairs = st.lists(st.tuples(sides, sides), max_size=60)


def pairs_of(text: ParallelText) -> list[tuple[str, str]]:
    return [(src.strip(), tgt.strip()) for src, tgt in zip(text.src, text.tgt, strict=True)]


@given(pairs=pairs, sizes=st.lists(st.integers(1, 3), min_size=1, max_size=2))
def test_no_held_out_pair_is_trained_on_and_none_is_lost(pairs: list[tuple[str, str]], sizes: list[int]) -> None:
    text = ParallelText([src for src, _ in pairs], [tgt for _, tgt in pairs])
    distinct = {pair for pair in pairs_of(text) if all(pair)}
    if len(distinct) <= 2 * sum(sizes):
        with pytest.raises(ValueError, match=f"^held_out={max(sizes)} is too many of {len(distinct)} distinct pairs"):
            hold_out(text, sizes)
        return
    rest, held = hold_out(text, sizes)
    held_pairs = [pair for one in held for pair in pairs_of(one)]
    assert [len(one) for one in held] == sizes
    assert len(set(held_pairs)) == sum(sizes)  # neither twice nor in dev and test both
    assert all(src and tgt for src, tgt in held_pairs)
    assert pairs_of(rest) == [pair for pair in pairs_of(text) if pair not in held_pairs]


def test_the_choice_is_random_and_always_the_same() -> None:
    text = ParallelText([f"都{i}" for i in range(100)], [f"capital {i}" for i in range(100)])
    (_, (dev, test)), (_, (dev_again, test_again)) = hold_out(text, [20, 20]), hold_out(text, [20, 20])
    assert (dev, test) == (dev_again, test_again)
    rows = [int(line[1:]) for line in dev.src + test.src]
    assert len(set(rows)) == 40
    assert min(rows) < 20
    assert max(rows) > 80
    assert rows != sorted(rows)
