"""Benchmarks: each one command, `python -m benchmarks NAME`, a ratio against a baseline in the same run."""
