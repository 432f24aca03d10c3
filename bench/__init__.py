"""Benchmarks: each compares two sides in one run; times are never asserted in tests."""
