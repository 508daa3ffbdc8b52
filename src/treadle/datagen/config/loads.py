"""The assumed load of one piece of work, which is used until runs of the dataset have been measured."""

from collections.abc import Mapping
from itertools import islice
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.core.documents import read_data
from treadle.core.errors import TreadleError
from treadle.core.estimates import CHARS_PER_TOKEN
from treadle.core.spec import PartSpec
from treadle.datagen.config.generation_config import GenerationConfig, Role
from treadle.datagen.scenarios.environment import MAX_LISTED_FILES
from treadle.datagen.scenarios.kinds import possible_kinds
from treadle.datagen.scenarios.scenario import Kind
from treadle.runs.task import task_set
from treadle.tools.resolve import is_code, resolve_tools

_DATA = read_data(__package__, "loads")
_TOOL_TOKENS, _HEAD_TOKENS, _RESULT_TOKENS, _CALL_TOKENS, _ANSWER_TOKENS, _COT_TOKENS = [
    int(_DATA["tokens"][name]) for name in ("tool", "head", "result", "call", "answer", "cot")
]
"""The assumed tokens of the parts of a conversation and of its prompts."""
_STEPS: dict[Kind, float] = {Kind(name): steps for name, steps in _DATA["steps"].items()}
"""The steps with calls in a conversation of each kind."""
_CALL_SECONDS: float = _DATA["seconds"]["call"]
_TOKENS_PER_SECOND: float = _DATA["seconds"]["tokens_per_second"]
_WORKS_ON_SERVERS = ("mcp", "openapi", "spin")


class Load(Struct, frozen=True, kw_only=True):
    """The calls, tokens and time of one piece of work: the expansion of a topic, a scenario, or a conversation."""

    calls: float
    input_tokens: float
    """The tokens of the prompts of all calls."""
    output_tokens: float
    seconds: float
    """The time of all calls, one after another."""
    cost_usd: float | None = None
    """The cost; `None` to compute it from the tokens."""


def assume_loads(config: GenerationConfig) -> tuple[dict[Role, Load], dict[Role, str]]:
    """Return the load of one piece of work by role, and the assumptions in words."""
    conversation, topics = config.generation.conversation, config.topics
    tools, files = tool_tokens(config), file_tokens(config)
    turns = (conversation.min_turns + conversation.max_turns) / 2
    steps = _steps(config)
    is_agent = conversation.type == "agent"
    answer = _COT_TOKENS if conversation.type == "cot" else _ANSWER_TOKENS
    system = _count(config.generation.instructions) + 60
    known_topics = min(topics.degree**topics.depth, 200) / 2
    agent = _conversation(turns, steps if is_agent else 0.0, system + (tools if is_agent else 0), answer)
    seen = turns * (answer + 60)
    loads: dict[Role, Load] = {
        "topics": _load(1, 450 + _count(topics.instructions) + 10 * known_topics, 14 * topics.degree + 20),
        "scenarios": _load(1, 700 + _count(config.generation.guidance) + tools + files, 180),
        "agent": agent,
        "user": _load(max(0.0, turns - 1), (450 + seen / 2) * max(0.0, turns - 1), 60 * max(0.0, turns - 1)),
        "judge": _load(
            1, 400 + seen + (steps * turns * (_RESULT_TOKENS + _CALL_TOKENS) if is_agent else 0), 80
        ),
    }
    texts: dict[Role, str] = {
        "topics": f"an answer with {topics.degree} topics has {14 * topics.degree + 20} tokens",
        "scenarios": f"a scenario has 180 tokens, its prompt {tools:,} for the tools and {files:,} for the files",
        "agent": f"a conversation has {turns:g} turns with {steps:.1f} steps with calls and an answer each; a call "
        f"has {_CALL_TOKENS} tokens, a result {_RESULT_TOKENS}, an answer {answer}"
        if is_agent
        else f"a conversation has {turns:g} turns, and an answer {answer} tokens",
        "user": "the simulated user is asked for each turn but the first, and writes 60 tokens",
        "judge": "the judge is asked once for each row",
    }
    texts["agent"] += f"; an answer takes {_CALL_SECONDS:g} s, and 1 s more for {_TOKENS_PER_SECOND:g} tokens"
    return loads, texts


def tool_tokens(config: GenerationConfig) -> int:
    """Return the number of tokens of the tools' definitions.

    For tools of servers, files and modules it is a guess, because none is started, asked or imported.
    """
    total = _count(msgspec.json.encode(config.tools.definitions).decode()) if config.tools.definitions else 0
    for part in toolsets_of(config):
        if is_server(part.name) or is_code(part.name):
            total += _DATA["server_tools"] * _TOOL_TOKENS
            continue
        try:
            specs = [item.spec for item in resolve_tools(part)]
        except TreadleError:
            continue
        total += _count(msgspec.json.encode(specs).decode())
    return total


def toolsets_of(config: GenerationConfig) -> tuple[PartSpec, ...]:
    """Return the toolsets of the agent: the configured ones, or else those of the task set."""
    tools = config.tools
    name = tools.task_set
    if tools.use or tools.definitions or name is None:
        return tools.parts()
    try:
        task = next(iter(task_set(name)), None)
    except TreadleError:
        return ()
    return () if task is None else tuple([PartSpec(name=name) for name in task.tools])


def is_server(name: str) -> bool:
    """Return whether a toolset starts or asks a server to learn its tools."""
    return name.partition(":")[0] in _WORKS_ON_SERVERS


def largest_prompts(config: GenerationConfig) -> dict[Role, int]:
    """Return the number of tokens of the longest prompt that each role is expected to get."""
    loads, _ = assume_loads(config)
    found: dict[Role, int] = {
        role: round(load.input_tokens / max(1.0, load.calls)) for role, load in loads.items()
    }
    # The last prompt of a conversation contains everything before it; the longest conversation has the most turns.
    turns = config.generation.conversation.max_turns
    found["agent"] += round(turns * _ANSWER_TOKENS + turns * _steps(config) * (_CALL_TOKENS + _RESULT_TOKENS))
    return found


def file_tokens(config: GenerationConfig) -> int:
    """Return the number of tokens of the description of the files in a scenario writer's prompt."""
    files = config.tools.files
    if files is None:
        return 0
    if isinstance(files, Mapping):
        return sum(min(_HEAD_TOKENS, 20 + _count(text)) for text in list(files.values())[:MAX_LISTED_FILES])
    if config.tools.task_set is not None:
        return 4 * _HEAD_TOKENS
    return max(1, len(list(islice(Path(files).rglob("*"), MAX_LISTED_FILES)))) * _HEAD_TOKENS


def _steps(config: GenerationConfig) -> float:
    """Return the mean number of steps with calls in a turn."""
    weights = possible_kinds(
        config.generation.kinds,
        has_tools=True,
        max_calls=config.tools.max_calls,
        max_steps=config.tools.max_steps,
    )
    mean = sum(_STEPS[kind] * weight for kind, weight in weights.items()) / (sum(weights.values()) or 1)
    return min(mean, config.tools.max_steps - 1)


def _conversation(turns: float, steps: float, base: float, answer: float) -> Load:
    """Return the agent's load for a conversation. The prompt of each call contains everything before it."""
    calls = turns * (steps + 1)
    turn_tokens = 60 + steps * (_CALL_TOKENS + _RESULT_TOKENS) + answer
    before = turn_tokens * (turns - 1) / 2
    within = 60 + steps * (_CALL_TOKENS + _RESULT_TOKENS) / 2
    return _load(calls, calls * (base + before + within), turns * (steps * _CALL_TOKENS + answer))


def _load(calls: float, input_tokens: float, output_tokens: float) -> Load:
    seconds = calls * _CALL_SECONDS + output_tokens / _TOKENS_PER_SECOND
    return Load(calls=calls, input_tokens=input_tokens, output_tokens=output_tokens, seconds=seconds)


def _count(text: str) -> int:
    return len(text) // CHARS_PER_TOKEN
