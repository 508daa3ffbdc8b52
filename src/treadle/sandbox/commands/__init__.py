"""Commands that run isolated with bubblewrap."""
