"""The work of an agent on one run: begin, resume or fork it, and drive it to its end.

Read first: `run.py` (`Run`, which is what to ask about a run: its answer, messages, tokens, cost and files),
`ensure.py` (the one way to a run with a given id), `begin.py`, `resume.py` (also forks) and `drive.py`.
`statuses.py` lists runs and finds the one that a person names, and `require_trust` of `agent_parts.py`
asks before a run from elsewhere is used.

A new option of agents or runs is a key of a class in `options.py`; a new limit is a field of `Policy`, in `core/`.
"""
