"""A configuration to begin with, and the file of a configuration."""

from treadle.datagen.config.model import Config
from treadle.datagen.config.secrets import hide_secrets

_STARTER = """\
# A dataset of conversations in which an agent works with files. All keys: docs/generate-config.md
# treadle generate THIS_FILE --dry-run   shows the plan, and what it costs
# treadle generate THIS_FILE             makes the dataset; the same command continues it

name: files
seed: 1

models:
  # A built-in teacher that needs no key. For a real model write its name, such as anthropic:claude-sonnet-4-5
  default: mock:teacher
  # A role may have its own model, such as a small one for topics:
  # topics: {model: "openai:gpt-5-mini", temperature: 0.9}

topics:
  prompt: Office work with reports, tables and notes
  mode: tree              # or graph, with links between topics
  degree: 3               # subtopics of each topic
  depth: 2                # levels below the root: 3 x 3 leaf topics
  # load: topics.json     # topics to use in place of building them

generation:
  num_samples: auto       # one row for each leaf topic; or a number, or a percentage such as 50%
  instructions: You are a careful assistant that works with the user's files.
  conversation:
    type: agent           # or basic, or cot
    min_turns: 1
    max_turns: 2
  # kinds: {single: 2, chained: 3, recovery: 1}    # how often each kind of tool use is wanted

tools:
  use: [files]            # toolsets, as for `treadle run --tools`: files, python, mcp:..., tools.py
  files: tasks:files      # the files of each sample: a folder, or those of built-in tasks
  max_steps: 12

# quality:                # all filters have defaults
#   filters: {duplicates: false}
#   evaluation_sets: [test.jsonl]

limits:
  max_seconds: 3600
  # max_cost_usd: 5

output:
  path: dataset-files     # relative to the current folder
  formats: [trl]
  splits: {train: 0.9, test: 0.1}

# publish:
#   license: CC-BY-4.0
#   huggingface: {repository: me/files}
"""


def starter() -> str:
    """Return a commented configuration that works without a key."""
    return _STARTER


def dump(config: Config) -> str:
    """Return the YAML file of a configuration, with all paths as they were resolved, and without secrets."""
    value = hide_secrets(config.model_dump(mode="json", exclude_defaults=True))
    import yaml

    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text
