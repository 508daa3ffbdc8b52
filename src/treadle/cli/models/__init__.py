"""The commands below `treadle models`."""
