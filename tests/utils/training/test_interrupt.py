import signal

import pytest

from utils.training.interrupt import graceful_interrupt

BOTH = (signal.SIGINT, signal.SIGTERM)


@pytest.mark.parametrize("number", BOTH)
def test_the_first_signal_asks_and_the_second_acts(number: signal.Signals) -> None:
    acted: list[int] = []
    before = {each: signal.signal(each, lambda given, _frame: acted.append(given)) for each in BOTH}
    try:
        with graceful_interrupt() as interrupt:
            assert not interrupt.asked
            signal.raise_signal(number)
            assert interrupt.asked
            assert not acted
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
            assert acted == [signal.SIGTERM, signal.SIGINT]
        signal.raise_signal(number)
        assert acted[2:] == [number]
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def test_the_handlers_are_as_before_even_after_an_error() -> None:
    before = [signal.getsignal(number) for number in BOTH]

    def fail() -> None:
        with graceful_interrupt():
            assert [signal.getsignal(number) for number in BOTH] != before
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert [signal.getsignal(number) for number in BOTH] == before


def test_one_interruption_does_not_interrupt_the_next_training() -> None:
    with graceful_interrupt() as first:
        signal.raise_signal(signal.SIGINT)
    with graceful_interrupt() as second:
        assert first.asked
        assert not second.asked
