"""From corpora to batches: fetch, verify, clean, encode once, bucket by length."""
