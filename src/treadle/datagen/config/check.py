"""Conflicts in a configuration: combinations that cannot work, and samples that cannot fit."""

from collections.abc import Callable, Iterator

from treadle.core.places import Problem
from treadle.core.registry import did_you_mean
from treadle.datagen.config.model import Config
from treadle.datagen.dataset.shares import SPLIT_NAME
from treadle.datagen.quality.registry import find_faults
from treadle.datagen.scenarios.types import Kind
from treadle.export.exporter import FORMATS

_CALLS = {Kind.SINGLE: 1, Kind.CHAINED: 2, Kind.PARALLEL: 2, Kind.RECOVERY: 2}
"""The smallest number of tool calls for each kind that needs calls."""
_STEPS = {Kind.SINGLE: 2, Kind.CHAINED: 3, Kind.PARALLEL: 2, Kind.RECOVERY: 3}
"""The smallest number of inferences in a turn, including the one with the answer."""


def find_conflicts(config: Config) -> list[Problem]:
    """Return the problems of a configuration that can be found without files, models and topics."""
    checks: tuple[Callable[[Config], Iterator[Problem]], ...] = (
        _check_topics,
        _check_conversation,
        _check_kinds,
        _check_weights,
        _check_formats,
        _check_output,
        _check_judge,
        _check_filters,
    )
    return [problem for check in checks for problem in check(config)]


def find_unknown_names(config: Config) -> list[Problem]:
    """Return the formats and filters of a configuration that do not exist."""
    return [*_check_formats(config), *_check_filters(config)]


def _check_topics(config: Config) -> Iterator[Problem]:
    topics = config.topics
    if topics.load is None:
        if not topics.prompt.strip():
            yield Problem(("topics", "prompt"), "it is missing; give the root topic, or a file with 'load'")
        return
    for key in ("degree", "depth", "mode", "max_attempts", "similarity", "instructions"):
        if key in topics.model_fields_set:
            text = f"topics that are loaded are not built; delete {key!r}, or delete 'load'"
            yield Problem(("topics", key), text)


def _check_conversation(config: Config) -> Iterator[Problem]:
    conversation, tools = config.generation.conversation, config.tools
    path = ("generation", "conversation")
    has_tools = bool(tools.use or tools.definitions)
    has_tasks = isinstance(tools.files, str) and tools.files.startswith("tasks:")
    if conversation.type == "agent" and not has_tools and not has_tasks:
        hint = "; your files need 'use: [files]'" if tools.files is not None else ""
        yield Problem(
            ("tools", "use"),
            f"an agent needs tools: name toolsets here, such as 'files', or give 'definitions'{hint}. For "
            "conversations without tools set generation.conversation.type to 'basic' or 'cot'",
        )
    if conversation.type != "agent" and has_tools:
        text = (
            f"conversations of the type {conversation.type!r} use no tools; set it to 'agent', or delete them"
        )
        yield Problem((*path, "type"), text)
    if conversation.type == "cot" and conversation.reasoning is None:
        text = "'cot' needs the form of its reasoning: 'freetext' or 'agent'"
        yield Problem((*path, "reasoning"), text)
    if conversation.type == "basic" and conversation.reasoning is not None:
        text = "conversations of the type 'basic' have no reasoning; set the type to 'cot', or delete it"
        yield Problem((*path, "reasoning"), text)
    if conversation.type == "agent" and conversation.reasoning == "freetext":
        text = "the reasoning of agents is kept with each step, which is 'agent'; 'freetext' is for 'cot'"
        yield Problem((*path, "reasoning"), text)
    if conversation.min_turns > conversation.max_turns:
        text = (
            f"min_turns is {conversation.min_turns} and max_turns is {conversation.max_turns}; set min_turns to at "
            f"most {conversation.max_turns}, or raise max_turns"
        )
        yield Problem((*path, "min_turns"), text)


def _check_kinds(config: Config) -> Iterator[Problem]:
    generation, tools = config.generation, config.tools
    turns = generation.conversation.max_turns
    for kind, weight in generation.kinds.items():
        path = ("generation", "kinds", kind.value)
        if not weight:
            continue
        if generation.conversation.type != "agent":
            text = (
                f"kinds of tool use need agents, and the conversations are {generation.conversation.type!r}"
            )
            yield Problem(path, f"{text}; delete it, or set generation.conversation.type to 'agent'")
        elif tools.max_calls is not None and _CALLS.get(kind, 0) > tools.max_calls * turns:
            text = f"it needs {_CALLS[kind]} calls, and tools.max_calls allows {tools.max_calls}; raise it"
            yield Problem(path, text)
        elif _STEPS.get(kind, 0) > tools.max_steps and (turns == 1 or tools.max_steps == 1):
            text = (
                f"it needs {_STEPS[kind]} steps in a turn, and tools.max_steps is {tools.max_steps}; raise it"
            )
            yield Problem(path, text)
    if generation.conversation.type == "agent" and tools.max_steps == 1 and not generation.kinds:
        text = "an agent needs at least 2 steps in a turn, one for a call and one for the answer"
        yield Problem(("tools", "max_steps"), text)


def _check_weights(config: Config) -> Iterator[Problem]:
    for key in ("kinds", "difficulties"):
        weights = getattr(config.generation, key)
        if weights and not any(weights.values()):
            yield Problem(("generation", key), "all weights are 0, so nothing can be drawn; raise one")
    number = config.generation.num_samples
    if isinstance(number, str) and number.endswith("%") and not float(number[:-1]):
        yield Problem(("generation", "num_samples"), f"{number!r} gives no sample; give a larger percentage")


def _check_formats(config: Config) -> Iterator[Problem]:
    for number, name in enumerate(config.output.formats):
        if name not in FORMATS:
            known = FORMATS.names()
            text = f"unknown format {name!r}{did_you_mean(name, known) or ';'} known are {', '.join(known)}"
            yield Problem(("output", "formats", number), text)


def _check_output(config: Config) -> Iterator[Problem]:
    output, schema = config.output, config.generation.conversation.output_schema
    if "custom" in output.formats and schema is None:
        text = "the format 'custom' needs the schema of its rows: generation.conversation.output_schema"
        yield Problem(("output", "formats", output.formats.index("custom")), text)
    for name in output.splits:
        if not SPLIT_NAME.fullmatch(name):
            text = f"{name!r} cannot be a part of a file name; use only letters, digits and '_'"
            yield Problem(("output", "splits", name), text)
    if not output.include_system_message and output.system_message is not None:
        text = (
            "the rows have no system message, because include_system_message is false; delete one of the two"
        )
        yield Problem(("output", "system_message"), text)


def _check_judge(config: Config) -> Iterator[Problem]:
    if config.models.judge is not None and config.quality.judge is None:
        text = "this model would never be asked; give quality.judge with a rubric, or delete the model"
        yield Problem(("models", "judge"), text)


def _check_filters(config: Config) -> Iterator[Problem]:
    for path, text in find_faults(config.quality.filters):
        yield Problem(path, text)
