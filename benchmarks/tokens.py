"""Steps per second with the ids and log probabilities of 200 tokens a step, over those of answers without."""

from collections.abc import Awaitable, Callable
from contextlib import ExitStack

from benchmarks.common import Figure, add, compare, in_slices, journal_path, make_agent, server, timed
from benchmarks.ids import renderer
from benchmarks.steps import runner
from treadle import Agent, Policy, open_journal
from treadle.core.types import Settings
from treadle.journal.protocol import Journal
from treadle.models.tokens.engines.registry import make_engine
from treadle.models.tokens.token_model import TokenModel

STEPS = 5
IN_FLIGHT = 64
RUNS = 400
ASKED = {"logprobs": True, "return_token_ids": True}
TEXT = {"format": "hermes", "template": "chatml"}

ENGINES = {
    "ids_completions": "vllm_completions",
    "ids_generate": "vllm_generate",
    "ids_sglang": "sglang_generate",
}
"""The engines that are sent token ids, by the names of their answers."""
SIDES = {
    "vllm": "openai:bench",
    "vllm_tokens": "openai:bench",
    "vllm_text": "completions:bench",
    "vllm_text_tokens": "completions:bench",
    "ids_chat": "openai:bench",
    **ENGINES,
}
PAIRS = {
    "chat": ("vllm_tokens", "vllm"),
    "completions": ("vllm_text_tokens", "vllm_text"),
    **{f"{kind} with a renderer": (side, "ids_chat") for side, kind in ENGINES.items()},
}
"""The answers with ids and those without that are compared."""


async def measure() -> list[Figure]:
    """Measure vLLM's chat and completions, and the engines that are sent token ids against a chat that says the
    same, with the journal at level `process`."""
    with ExitStack() as stack:
        journal = stack.enter_context(open_journal(stack.enter_context(journal_path())))
        runners = {
            side: side_runner(side, stack.enter_context(server(STEPS, dialect=side)), journal)
            for side in SIDES
        }
        found = await in_slices(
            {side: lambda one=one: timed(one, RUNS, IN_FLIGHT) for side, one in runners.items()}
        )
    return [
        Figure(
            f"steps/s with 200 ids and logprobs a step over those without, {name}",
            *(pair := compare(found[ours], found[theirs]))[:1],
            ">= 0.7",
            pair[1],
        )
        for name, (ours, theirs) in PAIRS.items()
    ]


def side_runner(side: str, base_url: str, journal: Journal) -> Callable[[], Awaitable[int]]:
    """Return a function that makes one run with the answers of `side`."""
    if side in ENGINES:
        engine = make_engine("bench", kind=ENGINES[side], base_url=base_url)
        model = TokenModel(engine, renderer(), settings=Settings(max_output_tokens=1000))
        return runner(Agent(model, tools=[add], policy=Policy(max_steps=None), journal=journal))
    options = {**(TEXT if "text" in side else {}), **(ASKED if side.endswith("_tokens") else {})}
    return runner(make_agent(base_url, journal, SIDES[side], **options))
