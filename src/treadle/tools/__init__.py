"""Tools: what a model may call. One file for each kind."""
