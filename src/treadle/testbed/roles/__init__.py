"""The roles of the teacher, as data and one small interpreter.

`agent_role` is the agent, `scenario_role` and `topic_role` write scenarios and topics, and `speakers` has the
persona, the simulated user and the judge. `errands.toml`, `talks.toml` and `words.toml` hold all wordings, answers
and words; `errands` and `talks` read the first two. `named_calls` is for requests that name tools, `file_kit` for
the tools that work on files. A new request is an entry in a data file.
"""
