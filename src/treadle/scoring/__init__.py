"""Grades of finished runs, and the advantages of rollouts.

Read first: `protocol.py`, then `registry.py` (rewards as texts and settings) and `grade.py` (which records a
`rewarded` event for each score). `advantages.py` is pure.

To add a scorer, write a class with `name` and `score` in a file of its own or in `scorers.py`, and add a line to
`SCORERS` in `registry.py`. Another package registers it under an entry point of the group `treadle.scoring`. An
exception in a scorer is a fault of the infrastructure; a score of 0 is a verdict.
"""
