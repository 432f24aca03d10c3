"""Benchmarks, each comparing two sides in one run; tests never assert times."""

import utils.command  # noqa: F401  # before torch: it sets how long the threads of torch spin
