"""Drawn figures, for inspection after their files are written."""

import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """All figures that are closed while the test runs."""
    figures: list[Figure] = []
    close = plt.close

    def note(figure: Figure) -> None:
        figures.append(figure)
        close(figure)

    monkeypatch.setattr(plt, "close", note)
    return figures
