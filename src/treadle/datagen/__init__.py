"""Generations: `treadle generate` makes datasets of conversations whose tool results are real.

A generation has no loop of its own: topics, scenarios, agents, simulated users and judgements are runs in the
dataset's journal, and a row is computed from the agent's run. It is a job over `treadle.jobs`: a sample is planned,
made, and then kept, rejected (by a filter) or failed (by the infrastructure); a kept sample is a row.

Read first: `generation` (the whole flow), `samples` (what samples are about, and what becomes of them),
`conversations/make` (one sample), `config/generation_config` (the keys; their docstrings are the documentation).
`topics/`, `scenarios/`, `quality/` and `dataset/` hold what their names say, and `prompts.toml` what models are
told.

Runs have fixed ids (`topic-ID-ATTEMPT`, `SAMPLE-ATTEMPT`, and `-scenario`, `-user` and `-judge` after it), so that
repeated work continues them. A dataset is continued only if its `config/fingerprint` is unchanged.

To add a filter, see `quality/`. To add a key, add a field with a docstring to `config/generation_config`; checks of
combinations, files and models belong in `config/conflicts`, and a key without influence on rows in
`config/fingerprint.toml`. For a kind of tool use, add a member to `Kind` (`scenarios/scenario`), its weight and
recognition to `scenarios/kinds` and its line to `prompts.toml`. For a format of topic files, add a
member to `TopicFormat` (`topics/topic_files`). For a service to publish to, add a member to `Service` and
a function to `dataset/upload`.
"""
