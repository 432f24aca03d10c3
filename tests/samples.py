"""Small texts, translations of them with some errors, and random attention maps, for several tests."""

import json
import re
from pathlib import Path
from typing import Any, NamedTuple

import torch

from const.token import EOS
from tests.tiny import TEXT
from utils.search.forced import AttentionMap
from utils.visualize.attention import Pair


class Translated(NamedTuple):
    references: list[str]
    good: list[str]
    bad: list[str]


def _worse(lines: list[str], stride: int, separator: str) -> list[str]:
    """In every n-th line, two words swap places and another is lost."""
    worse = []
    for i, line in enumerate(lines):
        words = line.split(separator) if separator else list(line)
        if i % stride == 0:
            words[1], words[-2] = words[-2], words[1]
        if i % stride == 1:
            del words[3]
        worse.append(separator.join(words))
    return worse


def _translated(lines: list[str], separator: str) -> Translated:
    return Translated(lines, _worse(lines, 4, separator), _worse(_worse(lines, 2, separator), 5, separator))


ENGLISH = _translated([line if i % 3 else f"Isn't it so? {line}" for i, line in enumerate(TEXT.tgt[:40])], " ")
TOKENIZED = Translated(*([line.replace(".", " .") for line in side] for side in ENGLISH))
JAPANESE = _translated([f"{a}{b}" for a, b in zip(TEXT.src[:40], TEXT.src[60:100], strict=True)], "")

HOSTILE = '</script><script>document.title="taken"</script>&lt;'
SRC, TGT = ["▁", "京都", "の", "寺", EOS], ["▁Kyoto", "'", "s", "▁temple", "▁temples", EOS]
PAIR = Pair("京都の寺", "Kyoto's temple temples", "ja", "en", "run-a")
HOSTILE_PAIR = Pair(HOSTILE, HOSTILE, "ja", "en", HOSTILE)


def recorded(src: list[str] = SRC, tgt: list[str] = TGT) -> AttentionMap:
    """Three encoder layers and two decoder layers, with two heads each."""
    draw = torch.Generator().manual_seed(3)

    def weights(n_layers: int, *size: int) -> list[torch.Tensor]:
        return [torch.rand(2, *size, generator=draw).mul(4).softmax(-1) for _ in range(n_layers)]

    s, t = len(src), len(tgt)
    decoder = [layer.tril() / layer.tril().sum(-1, keepdim=True) for layer in weights(2, t, t)]
    return AttentionMap(src, tgt, {"encoder": weights(3, s, s), "decoder": decoder, "cross": weights(2, t, s)})


def page_data(page: Path) -> Any:
    """What a page of attention shows."""
    (text,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page.read_text("utf-8"), re.S)
    return json.loads(text)
