"""The loop: a driver that asks `decide` for an action, has it performed, and appends the events.

Read first: `driver.py` (the only loop), `outbox.py` (how a performer returns events, and how they are appended and
published), `mail.py` (what the run is told from outside), then the performers: `inference.py`, `toolcalls.py`,
`compaction.py` and `routing.py`. `calls/` makes one tool call.

To watch runs, write a hook: a function of an event, or a class with the methods that `Hook` in `listener.py` lists.
It needs no registry: `Agent(hooks=[...])` takes it. The loop is measured before and after a change; see AGENTS.md.
"""
