"""The commands below `treadle topics`."""
