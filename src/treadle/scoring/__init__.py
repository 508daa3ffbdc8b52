"""Grades of finished runs, and the advantages of rollouts.

Read first: `protocol.py`, then `registry.py` (rewards as texts and settings) and `grade.py` (which records a
`rewarded` event for each score). `advantages.py` and `statistics.py` (intervals, differences, pass rates) are pure.

`expectations.py` says what is expected of a run and which calls it made; `call_matching.py` compares calls by
value.

To add a scorer, write a class with `name` and `score` in `scorers.py`, `call_scorers.py`, `outcome_scorers.py` or a
file of its own, and add a line to `SCORERS` in `registry.py`. Another package registers it under an entry point of
the group `treadle.scorers`. Its
settings are keyword-only arguments after `name`; `--reward NAME` works only if all of them have defaults. Check
them, and raise `ConfigError`. An exception in `score` that may pass, such as an `OSError`, is a fault of the
infrastructure, any other one is a mistake in the code, which stops a job at once; a score of 0 is a verdict.
A run that a limit ended is graded too: it has no `error`, and its `output` may be empty or unfinished.

Tests are in `tests/scoring/test_scoring.py`. People find the scorer in the table of `docs/rewards.md`, the
docstring of `rewards` in `jobs/sections.py`, and the help of `--reward` in `cli/commands/`.
"""
