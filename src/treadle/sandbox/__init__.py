"""Sandboxes: the files of a run, which can be snapshotted and restored."""
