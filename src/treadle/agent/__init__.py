"""The classes that users call: agents, sessions, runs and streams, each also in a blocking form.

Read first: `agent.py` (`Agent`) and `session.py` (`Session`). They only put the parts of a run together, and leave
the work to `treadle.runs`. `run_stream.py` iterates over events, `subagent.py` makes an agent a tool, `overview.py`
searches sessions, and `sync.py` makes the blocking forms.
"""
