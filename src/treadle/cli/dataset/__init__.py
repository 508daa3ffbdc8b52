"""The commands `treadle dataset`."""
