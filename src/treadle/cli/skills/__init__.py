"""The commands below `treadle skills`."""
