"""A page shows the benchmark's measurements."""

import json
from pathlib import Path

from bench.train_table import train_table


def test_a_row_sets_the_fastest_of_ours_beside_each(tmp_path: Path) -> None:
    def found(system: str, precision: str, speed: float, compiled: bool = False, **other: object) -> dict[str, object]:
        setting = {"system": system, "precision": precision, "compiled": compiled, "tokens_per_batch": 4096}
        return {"setting": setting, "tokens_per_s": speed, "peak_mib": 1234.4, "padding": 0.025, "part_ms": {}} | other

    result = {
        "name": "tanaka",
        "machine": "2 threads",
        "mflop_per_target_token": 50.0,
        "product_gflops": {"fp32": 200.0, "bf16": 800.0, "fp16": 500.0},
        "measurements": [
            found("miyako", "fp32", 2000.0, part_ms={"data": 0.4, "forward": 10.0, "backward": 20.0, "optimizer": 3.6}),
            found("miyako", "bf16", 4000.0, compiled=True),
            found("miyako", "fp32", 1900.0, compiled=True),
            found("JoeyNMT", "fp32", 800.0, padding=None),
            found("other", "fp16", 1000.0),
        ],
    }
    (tmp_path / "train_cpu.json").write_text(json.dumps(result), encoding="utf-8")
    (tmp_path / "decode_x.json").write_text("{}", encoding="utf-8")
    on = "| `tanaka`, 2 threads |"
    assert train_table(tmp_path).splitlines()[2:] == [
        f"{on} miyako fp32 | 4,096 | 2,000 | 2.00 x | 1.00 x | 50% | 2.5% | 0, 10, 20, 4 | 1,234 |",
        f"{on} miyako bf16, compiled | 4,096 | 4,000 | 1.00 x | 1.00 x | 25% | 2.5% |  | 1,234 |",
        f"{on} miyako fp32, compiled | 4,096 | 1,900 | 2.11 x | 1.05 x | 48% | 2.5% |  | 1,234 |",
        f"{on} JoeyNMT fp32 | 4,096 | 800 | 5.00 x | 2.50 x | 20% |  |  | 1,234 |",
        f"{on} other fp16 | 4,096 | 1,000 | 4.00 x |  | 10% | 2.5% |  | 1,234 |",
    ]
