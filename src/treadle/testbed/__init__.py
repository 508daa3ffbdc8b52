"""Models without a language model, and mocks of servers, for trials without a key, demonstrations and tests.

`oracle` solves the built-in tasks, `echo` makes the calls that a message names, and `teacher` plays all roles of
the generation of a dataset; its requests, answers and words are the data files in `roles/`. `mediocre/` does the
same badly, and lies. `play` makes the steps of a solver, with mistakes on purpose. `server/` serves the models in
OpenAI's wire format, and `engines/` mocks vLLM and SGLang over them. `built_in` has what the models share.

A new request of the teacher is an entry in `roles/errands.toml` or `roles/talks.toml`. A new kind of tool use
needs requests that show it there, and its case in `roles/scenario_role`.
"""

from treadle.testbed.oracle import OracleModel, named_oracle, oracle_for

__all__ = ["OracleModel", "named_oracle", "oracle_for"]
