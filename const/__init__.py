"""Constants: paths, special tokens, known corpora, presets."""
