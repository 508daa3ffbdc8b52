"""Regression tests for agents: recorded runs as fixtures, replayed against the agent of today.

Read first: `recorded_runs` (a recording is a run in a file), `replay_agent` (the agent is driven with the recorded
answers of the model, and by choice with the recorded results of the tools), then `request_differences` (which
request differs first, and how). `regression_tests` puts them together for `treadle test` and for `pytest_plugin`;
`live_scores` asks the model anew and judges its answers; `regression_reports` writes JUnit XML and annotations.

A replay asks no model, and without tools that run live it changes nothing outside its own memory.
"""
