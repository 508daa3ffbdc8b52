"""Runs that are over, read again: as turns, as tokens, as Markdown, and by making their calls once more.

Read first: `turns/steps.py` (events as turns and steps, for interfaces), `tokens/token_graph.py` (token ids as
branches, and the proof that none is lost or doubled) and `run_verification.py` (makes a run's calls again in a new
sandbox; `rerun.py` compares). `core/turns.py` knows when a turn is open.

To add a loss mask, write a function in `tokens/masks.py` and add a line to `MASKS` there. Another package registers
it under an entry point of the group `treadle.masks`.
"""
