from utils.dataset.last_made import LastMade


def test_the_last_one_is_remembered_and_no_other() -> None:
    made: list[int] = []
    last = LastMade(lambda n: made.append(n) or [n])  # type: ignore[func-returns-value]
    first = last(3)
    assert last(3) is first == [3]
    assert last(4) == [4]
    assert last(3) is not first
    assert made == [3, 4, 3]
