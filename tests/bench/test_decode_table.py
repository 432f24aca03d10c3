"""A page shows the benchmark's measurements."""

import json
from pathlib import Path

from bench.decode_table import decode_table

FOUND = [
    ("CTranslate2", "float32", 1, False, 80.0),
    ("miyako", "bf16", 1, False, 40.0),
    ("miyako", "fp32", 1, False, 20.0),
    ("CTranslate2", "float32", 5, True, 200.0),
    ("CTranslate2", "int8", 5, True, 250.0),
    ("miyako", "fp32", 5, True, 100.0),
    ("miyako", "bf16", 5, True, 300.0),
    ("without caches", "fp32", 5, True, 10.0),
]


def test_a_row_compares_what_does_the_same(tmp_path: Path) -> None:
    names = ("system", "precision", "beam", "batched")
    rows = [{"setting": dict(zip(names, row[:4], strict=True)), "sentences_per_s": row[4]} for row in FOUND]
    result = {"name": "small", "tokens": 20, "sentences": 500, "source_tokens": 14.1, "measurements": rows}
    (tmp_path / "decode_small.json").write_text(json.dumps(result), encoding="utf-8")
    assert decode_table(tmp_path).splitlines()[2:] == [
        "| `small`, 20 tokens forced | beam 5, batched | 200.0 | 10.0 (0.05 x) | 100.0 (0.50 x) | 300.0 (1.50 x) |",
        "| `small`, 20 tokens forced | greedy, one by one | 80.0 |  | 20.0 (0.25 x) | 40.0 (0.50 x) |",
    ]
