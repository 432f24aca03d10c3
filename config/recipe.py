"""Settings for a text of one's own where no preset is named: those of kftt_ja_en_small, but for these by its size.

Fewer pairs take fewer pieces, smaller batches and more dropout (Sennrich & Zhang 2019; Araabi & Monz 2020). The columns
are the sizes of what was measured: 2,000 pairs in docs/own_text.md, and the presets tanaka_ja_en and kftt_ja_en_small.
"""

from collections.abc import Mapping

import numpy as np

PAIRS = (2_000, 50_000, 440_000)
BY_PAIRS = {
    "tokenizer.vocab_size": (2_000, 6_000, 8_000),
    "model.d_model": (128, 256, 256),
    "model.dropout": (0.3, 0.2, 0),
    "batch.tokens_per_batch": (1_000, 2_000, 4_000),
    "training.max_steps": (2_000, 8_600, 8_000),
    "optimizer.peak_lr": (0.004, 0.003, 0.003),
}


def recipe(n_pairs: int, n_characters: int, given: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for a size by their names; those given, as typed, count, and what depends on them follows.

    Between two sizes they are interpolated by the logarithm of the number of pairs, to two digits; the width is that of
    the nearer one. Beyond the smallest and the largest they stay the same. Each character takes a piece.
    """
    size, sizes = np.log(n_pairs), np.log(PAIRS)
    chosen = {name: f"{float(f'{np.interp(size, sizes, row):.2g}'):g}" for name, row in BY_PAIRS.items()}
    chosen["model.d_model"] = str(BY_PAIRS["model.d_model"][np.abs(sizes - size).argmin()])
    chosen["tokenizer.vocab_size"] = str(max(int(chosen["tokenizer.vocab_size"]), n_characters + 1_000))
    known = chosen | {name: value for name, value in given.items() if value.isdecimal()}  # others will be refused
    width, steps = int(known["model.d_model"]), int(known["training.max_steps"])
    follows = dict.fromkeys(("optimizer.warmup_steps", "training.validate_every"), str(max(1, steps // 16)))
    if "training.max_minutes" in given:
        follows["training.max_steps"] = "null"  # so that the rate falls by the clock
    fixed = {"data.corpus": "files", "batch.accumulate": "1", "model.d_ff": str(4 * width)}
    return chosen | follows | fixed | dict(given)
