"""Benchmarks: commands of their own, never part of `make test`. Ratios in one run count; absolute times do not."""
