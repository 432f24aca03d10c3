"""A translator's attention as an interactive HTML page: every layer, every head, every token."""

import json
from pathlib import Path
from typing import NamedTuple

from utils.file import write_text
from utils.page_template import page_template
from utils.search.alignment import most_attended
from utils.search.attention_map import KINDS, AttentionMap, attention_entropy, largest_entropy

_PARTS = 1000  # units of a weight of 1: the resolution of the page


class Pair(NamedTuple):
    """A text and its translation with their language codes, and the name of the run."""

    source: str
    target: str
    src_lang: str
    tgt_lang: str
    run: str


def write_attention_page(found: AttentionMap, pair: Pair, path: Path) -> None:
    """Write one self-contained file that needs no network, for light or dark screens of any width."""
    page = page_template(Path(__file__).with_name("attention_page.html")).render(
        pair=pair, data=_embedded(_data(found, pair))
    )
    write_text(path, page)


def _embedded(data: object) -> str:
    """Return JSON for an HTML element, escaped so that it cannot end the element or begin another."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _data(found: AttentionMap, pair: Pair) -> dict[str, object]:
    """Return the data that the page shows."""
    kinds = []
    for kind, layers in found.weights.items():
        rows, columns = found.rows(kind), found.columns(kind)
        kinds.append(
            {
                "kind": kind,
                "name": KINDS[kind],
                "rows": {"tokens": rows, "lang": pair.src_lang if kind == "encoder" else pair.tgt_lang},
                "columns": {"tokens": columns, "lang": pair.tgt_lang if kind == "decoder" else pair.src_lang},
                "weights": [(weights * _PARTS).round().int().tolist() for weights in layers],
                "entropy": [[round(nats, 3) for nats in attention_entropy(weights).tolist()] for weights in layers],
                "most": round(largest_entropy(kind, len(rows), len(columns)), 3),
            }
        )
    last = found.weights["cross"][-1].mean(0)[:-1, :-1]
    return {
        "parts": _PARTS,
        "kinds": kinds,
        "source": {"tokens": found.src_tokens[:-1], "lang": pair.src_lang},
        "target": {"tokens": found.tgt_tokens[:-1], "lang": pair.tgt_lang},
        "links": [[s, t, round(last[t, s].item(), 3)] for s, t in most_attended(last)],
    }
