import pytest

from utils.command import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (59, "59 s"),
        (60, "1.0 min"),
        (5399, "90.0 min"),
        (5400, "1.5 h"),
        (172_799, "48.0 h"),
        (172_800, "2.0 days"),
    ],
)
def test_durations_are_said_in_a_unit_that_reads_well(seconds: float, text: str) -> None:
    assert duration(seconds) == text
