"""The group `treadle memory`: one file for each command."""
