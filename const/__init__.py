"""What never changes while the program runs: paths, special tokens, known corpora, presets."""
