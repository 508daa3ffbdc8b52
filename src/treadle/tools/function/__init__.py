"""Tools made from Python functions."""
