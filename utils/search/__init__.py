"""Search: from a source to token ids by `start`, `step` and `select` alone; and what models predict and attend to."""
