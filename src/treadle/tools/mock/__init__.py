"""Mocked tools, which answer from a file or a model instead of running."""
