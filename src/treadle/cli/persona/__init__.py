"""The commands below `treadle persona`."""
