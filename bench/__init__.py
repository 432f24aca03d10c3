"""Benchmarks, each comparing two sides in one run; tests never assert times."""
