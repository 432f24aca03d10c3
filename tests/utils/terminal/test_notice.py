import pytest

from utils.terminal.output import Notice, NoticeBoard


@pytest.mark.parametrize(("n", "rest"), [(10, []), (11, ["1 more line: odd"]), (1244, ["1,234 more lines: odd"])])
def test_only_the_first_notices_of_a_kind_are_said_and_the_rest_counted(n: int, rest: list[str]) -> None:
    said: list[str] = []
    board = NoticeBoard(said.append)
    for number in range(1, n + 1):
        board.post(number, [Notice("odd", f"{number} is odd")])
    board.post(n, [Notice("even", "even")])
    board.conclude()
    first = [f"line {number}: {number} is odd" for number in range(1, 11)]
    assert said == [*first, f"line {n}: even", *(f"{line}; --format jsonl tells which" for line in rest)]
