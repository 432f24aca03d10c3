"""Published scores of other systems, beside our results."""

from pathlib import Path
from statistics import mean
from typing import NamedTuple

from utils.file import read_json


class Yardstick(NamedTuple):
    """A published score on a corpus that we train on.

    Attributes:
        result: name of our results to compare with
        bleu: published BLEU
        source: publication and system, in Markdown
        protocol: how the published score was computed
        same: whether ours is computed in the same way; if not, the scores are only roughly comparable
    """

    result: str
    bleu: float
    source: str
    protocol: str
    same: bool


YARDSTICKS = (
    Yardstick(
        "kftt_ja_en_small",
        22.29,
        "[nymwa](https://github.com/nymwa/kftt_jaen_example), fairseq's Transformer base, 20 epochs of the "
        "329,882 pairs of kyoto-train.cln on a GPU",
        "lower-cased tokens, multi-bleu.perl",
        same=False,
    ),
    Yardstick(
        "kftt_ja_en_small",
        21.79,
        "[SentencePiece](https://github.com/google/sentencepiece/blob/master/doc/experiments.md), GNMT-style "
        "LSTMs, the best of four vocabularies",
        "cased words, detokenized; NIST's scorer",
        same=False,
    ),
    Yardstick(
        "kftt_en_ja_small",
        29.55,
        "[SentencePiece](https://github.com/google/sentencepiece/blob/master/doc/experiments.md), GNMT-style "
        "LSTMs, the best of four vocabularies",
        "words segmented by KyTea; NIST's scorer",
        same=False,
    ),
    Yardstick(
        "multi30k_en_de",
        41.02,
        "[Wu et al. 2021](https://aclanthology.org/2021.acl-long.480), fairseq's Transformer with 4 + 4 layers of 128",
        "lower-cased Moses tokens",
        same=True,
    ),
    Yardstick(
        "multi30k_de_en_words",
        36.52,
        "[bentrevett's seq2seq notebook 6](https://github.com/bentrevett/pytorch-seq2seq), Transformer of 3 + 3 layers",
        "lower-cased words, greedy; theirs tokenized by spaCy, ours by Moses",
        same=False,
    ),
    Yardstick(
        "tanaka_en_ja",
        37.0,
        "[refiute](https://github.com/refiute/primitiv_practice), a recurrent network with attention in primitiv",
        "tokens; theirs is “about 37”, greedy, by its own scorer",
        same=False,
    ),
)

_HEAD = "| run | published BLEU | by | counted on | BLEU here | difference |\n|---|---|---|---|---|---|"


def yardstick_table(folder: Path) -> str:
    """Return a Markdown table with a row for each published score that we have results for; seeds are averaged.

    Args:
        folder: folder with the results.
    """
    ours: dict[str, list[float]] = {}
    for file in sorted(folder.glob("*.json")):
        result = read_json(file)
        if "bleu" in result:
            ours.setdefault(result["name"], []).append(result["bleu"])
    rows = [
        f"| `{theirs.result}` | {theirs.bleu:.2f} | {theirs.source} | {theirs.protocol} | **{here:.2f}** "
        f"| {f'{here - theirs.bleu:+.2f}' if theirs.same else 'not comparable'} |"
        for theirs in YARDSTICKS
        if theirs.result in ours
        for here in [mean(ours[theirs.result])]
    ]
    return "\n".join([_HEAD, *rows])
