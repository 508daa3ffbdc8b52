"""Agents with odd answers over every endpoint that takes ids: each prompt is what the engine must see.

Answers have several calls, calls that are malformed, unknown or cut off, marks of the template as text, and nothing
at all. Sub-agents, steps without tools, compaction, forks and further turns follow them.
"""

import json
import os
import random
from pathlib import Path
from zlib import crc32

import pytest
from tests.rollout.engines import ENDPOINTS, check, connect

from treadle import Agent, Policy, tool
from treadle.core.types import Message, Role, ToolCall
from treadle.journal.memory import MemoryJournal
from treadle.testbed.engines import ENGINES, EngineSettings, export_tokenizer, tokenizer
from treadle.testbed.engines.mock_template import Asked, Template, Variant
from treadle.testbed.engines.token_policy import MockPolicy
from treadle.testbed.server import serve
from treadle.trajectory.tokens import Drift, TokenGraph, load_tokens

TOKENS = [name for name in ENDPOINTS if not name.endswith("chat")]
SEEDS = range(40 if os.environ.get("TREADLE_FULL") else 2)
VARIANTS: tuple[frozenset[Variant], ...] = (
    frozenset(),
    frozenset((Variant.PREFILL_THINKING, Variant.STRIP_THINKING)),
)
TEXTS = (
    "",
    "Done.",
    "  é 日本  \n\n",
    "<|im_end|> </think> <tool_response>\nfake\n</tool_response>",
    '<tool_call>\n{"name": "add", "arguments": {"a": 1, \n</tool_call>',
    'And <tool_call>\n{"name": "add", "arguments": {"a": 1',
)
CALLS = (
    (("add", '{"b": 1, "a": 2}'), ("add", '{"a": 3, "b": 4}')),
    (("add", '{"a": "x", "b": 2.0e3}'), ("nosuch", "{}")),
    (("helper", '{"task": "Help."}'),),
)


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def answer(asked: Asked, seed: int) -> Message:
    """Return an answer that follows from the prompt and the seed."""
    said = json.dumps([item.content for item in asked.messages])
    draw = random.Random(f"{seed}/{crc32(said.encode())}")
    reasoning = draw.choice((None, "", "A <tool_call> in a thought."))
    if draw.random() < 0.5:
        return Message(Role.ASSISTANT, draw.choice(TEXTS), reasoning=reasoning)
    calls = [ToolCall("", name, arguments) for name, arguments in draw.choice(CALLS)]
    return Message(Role.ASSISTANT, draw.choice(TEXTS[:2]), tuple(calls), reasoning=reasoning)


def check_marks(graph: TokenGraph, template: Template) -> None:
    """Check that the marks of the template begin and end each message exactly once."""
    for row in graph.trajectories:
        is_open = False
        for token in row.token_ids_T:
            if token in (template.start, template.end):
                assert is_open is (token == template.end)
                is_open = token == template.start


@pytest.mark.sets(2)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("variants", VARIANTS)
@pytest.mark.parametrize("renderer", ["hf", "chatml"])
@pytest.mark.parametrize("endpoint", TOKENS)
async def test_every_prompt_continues_the_ids_of_the_one_before(
    tmp_path: Path, endpoint: str, renderer: str, variants: frozenset[Variant], seed: int
) -> None:
    name = "+".join(["odd", *sorted(variants)])
    template = Template(tokenizer(), variants)
    policy = MockPolicy(name, 0.0, lambda asked: answer(asked, seed), template)
    settings = EngineSettings(model=name, seed=seed, cut_rate=0.2, abort_rate=0.2)
    app = ENGINES[ENDPOINTS[endpoint][0]](settings, policy)
    server = await serve(app=app)
    export_tokenizer(name, tmp_path)
    thinking = "open" if variants else "none"
    spec = f"hf:{tmp_path}" if renderer == "hf" else f"chatml:{tmp_path}?thinking={thinking}"
    made = connect(endpoint, name, server.url, tmp_path, renderer=spec)
    journal = MemoryJournal()
    inner = Agent(made, tools=[add], journal=journal, policy=Policy(max_steps=2)).as_tool("helper", "Helps.")
    helper = Agent(made, tools=[add, inner], journal=journal, policy=Policy(max_steps=2))
    tools = [add, helper.as_tool("helper", "Helps.")]
    agent = Agent(made, tools=tools, journal=journal, policy=Policy(max_steps=4, keep_turns=1))
    async with agent.session("talk") as session:
        for turn in range(3):
            await session.send(f"Turn {turn}.")
        await session.compact()
        await session.send("Turn 3.")
    events = journal.read("talk")
    ends = [event.seq for event in events if type(event.body).__name__ == "TurnCompleted"]
    await agent.fork("talk", ends[1], text="Another turn.", new_run_id="fork")
    graph = load_tokens(journal, "talk", "fork")
    await server.close()
    # The summary of the compaction belongs to no trajectory.
    check(app, graph, lost=10)
    check_marks(graph, template)
    kinds = {row.drift.kind for row in graph.trajectories if row.drift}
    assert kinds <= {Drift.COMPACTION, Drift.SUBAGENT, Drift.FORK}
