"""Steps per second with the ids and log probabilities of 200 tokens a step, over those of answers without."""

from contextlib import ExitStack
from typing import Any

from benchmarks.common import Figure, compare, in_slices, journal_path, make_agent, server, timed
from benchmarks.steps import runner
from treadle import open_journal

STEPS = 5
IN_FLIGHT = 64
RUNS = 400
ASKED = {"logprobs": True, "return_token_ids": True}


async def measure() -> list[Figure]:
    """Measure vLLM's chat, and its completions with calls that a format reads, with the journal at level
    `process`."""
    text = {"format": "hermes", "template": "chatml"}
    return [
        await _measure("chat", "vllm", "openai:bench", {}),
        await _measure("completions", "vllm_text", "completions:bench", text),
    ]


async def _measure(name: str, wire: str, model: str, options: dict[str, Any]) -> Figure:
    with ExitStack() as stack:
        journal = stack.enter_context(open_journal(stack.enter_context(journal_path())))
        wires = {f"{wire}_tokens": {**options, **ASKED}, wire: options}
        runners = {
            side: runner(
                make_agent(stack.enter_context(server(STEPS, dialect=side)), journal, model, **given)
            )
            for side, given in wires.items()
        }
        found = await in_slices(
            {side: lambda one=one: timed(one, RUNS, IN_FLIGHT) for side, one in runners.items()}
        )
    ratio, detail = compare(found[f"{wire}_tokens"], found[wire])
    return Figure(
        f"steps/s with 200 ids and logprobs a step over those without, {name}", ratio, ">= 0.7", detail
    )
