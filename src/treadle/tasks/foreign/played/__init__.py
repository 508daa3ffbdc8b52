"""Tasks that programs of others play themselves: `verifiers:NAME`, `inspect:FILE` and `openenv:FOLDER`.

`played_set` has the task sets, and the Python that each kind needs. `played_program` is what that Python runs; it
imports nothing of Treadle. A kind is one file beside it, with a class that has the methods of its `Player`, and a
line in `PLAYERS` and in `KINDS`.
"""
