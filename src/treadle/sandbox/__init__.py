"""Sandboxes: the files of a run, which can be snapshotted and restored, and commands over them.

`protocol` says what a sandbox is, and what limits commands. `in_memory` holds files and snapshots, `mount`
decides which files of a folder on disk come into a sandbox, and `paths` normalises their paths. `commands/` runs
commands in isolation: read `commands/host` first.
"""
