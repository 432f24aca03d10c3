"""The effect of the length penalty on scores: `SearchConfig.penalty`."""

from pathlib import Path

from utils.search.hypothesis import SearchConfig
from utils.visualize.sheet import sheet

_SETTINGS = (
    SearchConfig(length_penalty=0.0),
    SearchConfig(length_penalty=0.6),
    SearchConfig(length_penalty=1.0),
    SearchConfig(length_penalty=1.0, normalization="length"),
)
_NATS = 0.5  # cost of each token of a translation


def draw_length_penalty(picture: Path) -> None:
    """Draw the divisor, and the score of translations of equally likely tokens, against their length."""
    lengths = range(1, 51)
    with sheet(picture, (10, 3.8), columns=2) as (divisor, score):
        for config in _SETTINGS:
            label = f"α = {config.length_penalty:g}"
            label += f", {config.normalization}" if config.length_penalty else ""
            penalties = [config.penalty(n) for n in lengths]
            divisor.plot(lengths, penalties, label=label)
            score.plot(lengths, [-_NATS * n / penalty for n, penalty in zip(lengths, penalties, strict=True)])
        divisor.set(title="Divided by", ylim=(0, 15))
        score.set(title=f"Score of tokens that cost {_NATS} nats each", ylim=(-16, 0.5))
        for axes in (divisor, score):
            axes.set(xlabel="tokens of a translation, </s> included")
            axes.grid(alpha=0.3)
        divisor.legend(frameon=False)
