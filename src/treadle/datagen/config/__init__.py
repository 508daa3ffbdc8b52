"""The configuration of `treadle generate`."""
