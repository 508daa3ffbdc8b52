"""The part of a session that the model sees: its window, the view of a step, and compaction.

Read first: `compaction_plan.py` (what is cut, what is summarised, and what stays), then `compaction_summary.py`
and `compaction_size.py`. What the model is shown of a transcript is folded in `core/prompts/prompting.py`, and
`loop/compaction.py` performs a compaction. `step_view.py` is what `treadle show --context` reads.
"""
