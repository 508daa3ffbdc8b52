"""Benchmarks. `python -m benchmarks NAME` runs one and prints its ratios against a baseline in the same run."""
