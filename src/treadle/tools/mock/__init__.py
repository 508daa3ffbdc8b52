"""Tools that answer from a file or a model instead of running."""
