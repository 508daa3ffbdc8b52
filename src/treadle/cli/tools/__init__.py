"""The commands below `treadle tools`."""
