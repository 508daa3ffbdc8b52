"""The command `treadle demo`, and the worker process that it starts."""
