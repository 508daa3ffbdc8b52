"""The knowledge of an agent in addition to the conversation: its persona, memory, documents, files and skills.

Read first: `protocol.py` (what `agent/` uses), `surroundings.py` (all of it for one agent), then the folder of one
kind. `journal/identity.py` keeps which of them the user trusts. All text from here is foreign: it enters a
prompt within `core/prompts/fence.py`, with a case in `tests/context/test_injection.py`.
"""
