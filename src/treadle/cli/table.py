"""The commands by name, with the summaries that the help shows.

The help of `treadle`, `treadle models` and `treadle tools` is made from this table and imports no command.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

VARIABLE = "_TREADLE_COMPLETE"
"""The environment variable by which a shell asks for completions."""


class CommandEntry(NamedTuple):
    """One command: its function, and its line in the help."""

    function: str
    """`module:function`. The docstring of the function has two command lines for the help."""
    summary: str
    """The first line of the function's docstring."""
    panel: str = "Commands"
    """The heading under which the help lists the command."""
    commands: "Mapping[str, CommandEntry]" = MappingProxyType({})
    """Commands of its own, which run if their name is the first argument."""


class GroupEntry(NamedTuple):
    """A command that has commands of its own."""

    commands: dict[str, CommandEntry]
    summary: str
    examples: tuple[str, str]
    panel: str = "Commands"


MODELS = {
    "list": CommandEntry(
        "treadle.cli.commands.models:list_models",
        "List the models of treadle.toml, and the providers for names such as provider:name.",
    ),
    "check": CommandEntry(
        "treadle.cli.commands.models:check",
        "Ask a live endpoint a dozen short questions to find out what it supports.",
    ),
    "tiers": CommandEntry(
        "treadle.cli.commands.models:tiers",
        "List the tiers with their models, what is known about these, and what is missing.",
    ),
    "route": CommandEntry(
        "treadle.cli.commands.models:route",
        "Say which tier a router would choose for a message, and why.",
    ),
    "set-key": CommandEntry(
        "treadle.cli.commands.models:set_key",
        "Store the API key of a provider, in the system's keyring or in a file that only you can read.",
    ),
}

TOOLS = {
    "list": CommandEntry(
        "treadle.cli.commands.tools:list_tools",
        "List tools with their effect and description, or the available toolsets without --tools.",
    ),
    "call": CommandEntry(
        "treadle.cli.commands.tools:call", "Call one tool in a fresh sandbox and print its result."
    ),
    "import": CommandEntry(
        "treadle.cli.commands.tools:import_tools",
        "Read tool definitions and write them in another shape.",
    ),
    "serve": CommandEntry(
        "treadle.cli.commands.tools:serve", "Serve tools over MCP and over the Spin protocol."
    ),
}

DATASET = {
    "show": CommandEntry(
        "treadle.cli.commands.dataset:show",
        "Show one row of a dataset: its messages, calls, results and verdicts.",
    ),
    "stats": CommandEntry(
        "treadle.cli.commands.dataset:stats",
        "Count the contents of a dataset: rows, tools, kinds, topics, tokens, cost, duplicates and rejections.",
    ),
    "verify": CommandEntry(
        "treadle.cli.commands.dataset:verify",
        "Make the tool calls of all rows again in fresh sandboxes, and compare the rows with the journal.",
    ),
    "split": CommandEntry(
        "treadle.cli.commands.dataset_files:split",
        "Write the rows by split and format, so that no topic is in two splits.",
    ),
    "merge": CommandEntry(
        "treadle.cli.commands.dataset_files:merge_datasets",
        "Merge datasets into one, without duplicate rows.",
    ),
    "convert": CommandEntry(
        "treadle.cli.commands.dataset_files:convert",
        "Convert rows from one format to another, and say what they lose.",
    ),
    "report": CommandEntry(
        "treadle.cli.commands.dataset:report",
        "Write a report with pictures, as one HTML file that needs no network.",
    ),
    "pairs": CommandEntry(
        "treadle.cli.commands.dataset_files:pairs",
        "Write preference pairs from runs that were forked from each other.",
    ),
}

TOPICS = {
    "build": CommandEntry(
        "treadle.cli.commands.topics:build", "Build a tree or a graph of topics with a model."
    ),
    "show": CommandEntry("treadle.cli.commands.topics:show", "Show the topics of a file as a tree."),
    "import": CommandEntry(
        "treadle.cli.commands.topics:import_topics", "Read topics and write them in another format."
    ),
}

MEMORY = {
    "list": CommandEntry("treadle.cli.commands.memory:list_memories", "List memories, the newest first."),
    "show": CommandEntry(
        "treadle.cli.commands.memory:show",
        "Show one memory with its reason, its strength, where it comes from, and its earlier versions.",
    ),
    "search": CommandEntry(
        "treadle.cli.commands.memory:search",
        "Search memories and documents by their words, and by their meaning with --embeddings.",
    ),
    "add": CommandEntry("treadle.cli.commands.memory:add", "Write a memory, as the user."),
    "forget": CommandEntry("treadle.cli.commands.memory:forget", "Delete memories with all their versions."),
    "rollback": CommandEntry(
        "treadle.cli.commands.memory:rollback",
        "Write the text of an older version as a new version, as the user.",
    ),
}

SKILLS = {
    "list": CommandEntry(
        "treadle.cli.commands.skills:list_skills",
        "List skills with their trust and description, and say which folders are no usable skills.",
    ),
    "show": CommandEntry(
        "treadle.cli.commands.skills:show", "Show a skill: its trust, its files and its text."
    ),
    "check": CommandEntry(
        "treadle.cli.commands.skills:check", "Check skills, and print every mistake with its line."
    ),
    "trust": CommandEntry(
        "treadle.cli.commands.skills:trust",
        "Trust a skill with its present content. If the content changes, you are asked again.",
    ),
}

PERSONA = {
    "show": CommandEntry(
        "treadle.cli.commands.persona:show",
        "Show the system message of a persona, and what it would start and send. Nothing is started.",
    ),
    "check": CommandEntry(
        "treadle.cli.commands.persona:check",
        "Check the file of a persona and the skills and documents that it names, and print every mistake.",
    ),
    "trust": CommandEntry(
        "treadle.cli.commands.persona:trust",
        "Trust a persona with its present content, as --trust does. If the content changes, you are asked again.",
    ),
}

ROLLOUT = {
    "report": CommandEntry(
        "treadle.cli.commands.rollout:report",
        "Write a report of rollouts as one HTML file: rewards, groups, lengths, tools, drift and tokens.",
    ),
}

_RUN, _INSPECT, _DATA = "Run", "Inspect and export", "Training data"
_SETUP, _OFFLINE = "Models, tools and tasks", "Try it offline"

COMMANDS: dict[str, CommandEntry | GroupEntry] = {
    "run": CommandEntry("treadle.cli.commands.run:run", "Run a model with tools on a text or a task.", _RUN),
    "chat": CommandEntry("treadle.cli.chat.conversation:chat", "Chat with a model that has tools.", _RUN),
    "memory": GroupEntry(
        MEMORY,
        "List, search, write and delete what a persona remembers about a user.",
        ("treadle memory list", "treadle memory search 'what may Kim not eat?'"),
        _RUN,
    ),
    "generate": CommandEntry(
        "treadle.cli.commands.generate:generate",
        "Generate training data: conversations in which an agent uses real tools, checked one by one.",
        _DATA,
    ),
    "rollout": CommandEntry(
        "treadle.cli.commands.rollout:rollout",
        "Run groups of agents on tasks, and hand trainers what the model sampled.",
        _DATA,
        ROLLOUT,
    ),
    "resume": CommandEntry(
        "treadle.cli.commands.run:resume",
        "Resume a run that was interrupted, failed, or is waiting for an answer.",
        _RUN,
    ),
    "worker": CommandEntry(
        "treadle.cli.commands.services:worker",
        "Drive the runs that wait in a queue of a journal, until Ctrl-C or SIGTERM.",
        _RUN,
    ),
    "approve": CommandEntry(
        "treadle.cli.commands.replies:approve", "Decide about a tool call that waits for approval.", _RUN
    ),
    "answer": CommandEntry(
        "treadle.cli.commands.replies:answer", "Answer a question that a run waits for.", _RUN
    ),
    "fork": CommandEntry(
        "treadle.cli.commands.run:fork", "Start a new run from the first events of another run.", _RUN
    ),
    "runs": CommandEntry(
        "treadle.cli.commands.listings:runs", "List the runs of a journal, the newest first.", _INSPECT
    ),
    "stats": CommandEntry(
        "treadle.cli.commands.listings:stats",
        "Count cost, tokens, cache hits, latency and errors by model, tool and day.",
        _INSPECT,
    ),
    "sessions": CommandEntry(
        "treadle.cli.commands.listings:sessions",
        "List the sessions of a journal, the newest first, search their messages, or delete some.",
        _INSPECT,
    ),
    "show": CommandEntry(
        "treadle.cli.commands.show:show", "Show a run's transcript, its events or its tokens.", _INSPECT
    ),
    "files": CommandEntry(
        "treadle.cli.commands.show:files", "List the files of a run, or write them to a folder.", _INSPECT
    ),
    "replay": CommandEntry(
        "treadle.cli.commands.recheck:replay",
        "Replay runs from their journal, without a model or a tool, and report differences.",
        _INSPECT,
    ),
    "verify": CommandEntry(
        "treadle.cli.commands.recheck:verify",
        "Make the tool calls of runs again in a fresh sandbox and compare the results.",
        _INSPECT,
    ),
    "rescore": CommandEntry(
        "treadle.cli.commands.recheck:rescore",
        "Grade finished runs again, and record the grades that are new or have changed.",
        _INSPECT,
    ),
    "check": CommandEntry(
        "treadle.cli.commands.archive:check", "Read a whole journal and say what is damaged.", _INSPECT
    ),
    "export": CommandEntry(
        "treadle.cli.commands.archive:export", "Export runs as rows for training, or as a journal.", _INSPECT
    ),
    "import": CommandEntry(
        "treadle.cli.commands.archive:import_", "Import the runs of an exported journal.", _INSPECT
    ),
    "backup": CommandEntry(
        "treadle.cli.commands.archive:backup",
        "Copy a journal to a new file, also while it is in use.",
        _INSPECT,
    ),
    "topics": GroupEntry(
        TOPICS,
        "Build, show and convert the topics of a dataset.",
        (
            "treadle topics build --prompt 'Office work with files' --model openai:gpt-5-mini",
            "treadle topics show topics.json --depth 1",
        ),
        _DATA,
    ),
    "dataset": GroupEntry(
        DATASET,
        "Show, count, verify, split, merge and convert datasets, and report on them.",
        ("treadle dataset stats dataset", "treadle dataset show dataset 3"),
        _DATA,
    ),
    "publish": CommandEntry(
        "treadle.cli.commands.generate:publish",
        "Upload a dataset to the Hugging Face Hub or to Kaggle.",
        _DATA,
    ),
    "models": GroupEntry(
        MODELS,
        "List models, and find out what a live endpoint supports.",
        ("treadle models list", "treadle models check vllm:Qwen/Qwen3-8B"),
        _SETUP,
    ),
    "tools": GroupEntry(
        TOOLS,
        "List tools, call one, convert their definitions, or serve them to other programs.",
        (
            "treadle tools list --tools python",
            'treadle tools call python \'{"code": "2 ** 64"}\' --tools python',
        ),
        _SETUP,
    ),
    "persona": GroupEntry(
        PERSONA,
        "Show, check and trust the files of personas.",
        ("treadle persona check assistant.yaml", "treadle persona show assistant.yaml"),
        _SETUP,
    ),
    "skills": GroupEntry(
        SKILLS,
        "List, show, check and trust skills.",
        ("treadle skills list --skills ./skills", "treadle skills trust csv-report --skills ./skills"),
        _SETUP,
    ),
    "tasks": CommandEntry(
        "treadle.cli.commands.setup:tasks", "List task sets and tasks, or show one task.", _SETUP
    ),
    "init": CommandEntry(
        "treadle.cli.commands.setup:init", "Write a commented treadle.toml and its schema.", _SETUP
    ),
    "schema": CommandEntry(
        "treadle.cli.commands.setup:schema",
        "Print the JSON Schema of a kind of file, which editors use to complete and check it.",
        _SETUP,
    ),
    "doctor": CommandEntry(
        "treadle.cli.commands.setup:doctor",
        "Check what works on this machine, and say how to fix the rest.",
        _SETUP,
    ),
    "completion": CommandEntry(
        "treadle.cli.commands.setup:completion",
        "Print the script that makes a shell complete the commands of treadle.",
        _SETUP,
    ),
    "demo": CommandEntry(
        "treadle.cli.demo.dataset_demo:demo",
        "Generate training data from a topic, kill that with SIGKILL, go on and verify every row, all offline.",
        _OFFLINE,
    ),
    "mock": CommandEntry(
        "treadle.cli.commands.services:mock",
        "Serve models that need no key, to try tools, agents and clients with.",
        _OFFLINE,
    ),
}
"""The commands, in the order of the help."""

_MEMORY_CALLS = 'see "From Python" in docs/memory.md'
_TOPIC_CALLS = "see docs/topics.md"
MOVED = {
    "generate --engine": "it is called --workers now",
    "rollout --engine": "it is called --workers now",
    "generate --schema": "write: treadle schema generate",
    "rollout --schema": "write: treadle schema rollout",
    "models schema": "write: treadle schema config",
    "persona schema": "write: treadle schema persona",
    "memory history": "`treadle memory show` lists the versions of a memory",
    "memory audit": f"call memory.store.audit() in Python; {_MEMORY_CALLS}",
    "memory embed": f"call memory.embed_missing() in Python; {_MEMORY_CALLS}",
    "topics prune": f"call treadle.datagen.topics.topic_graph.prune() in Python; {_TOPIC_CALLS}",
    "topics draw": f"call treadle.datagen.topics.draw.draw_svg() in Python; {_TOPIC_CALLS}",
}
"""What to do in place of commands and options that were removed or renamed."""
