"""Commands shut in with bubblewrap."""
