"""The bytes of a journal for each sampled token with its id and log probability, above the text."""

import random
from collections.abc import Callable
from pathlib import Path

from benchmarks.common import Figure, add, journal_path
from treadle import Agent, Policy, ScriptedModel, open_journal
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import Completion, FinishReason, Message, Request, Role, ToolCall

STEPS, RUNS, SAMPLED, ADDED = 20, 32, 200, 40
"""The steps of a run, the runs, and the tokens of a step that are sampled and those that the prompt adds."""
_ID_BYTES = 4 * 4 / 3
"""The bytes of an id in base64."""
_CALL = (ToolCall("", "add", '{"a":1,"b":2}'),)


def _script(has_ids: bool, has_logprobs: bool, seed: int) -> Callable[[Request], Completion]:
    """Return a model's function that answers with 200 tokens, each of about 4 characters."""
    draw = random.Random(seed)
    ids: list[int] = []

    def answer(request: Request) -> Completion:
        is_last = len(request.messages) >= 2 * STEPS - 1
        text = "".join(draw.choices("abcdefgh ", k=4 * SAMPLED))
        message = Message(Role.ASSISTANT, text, () if is_last else _CALL)
        finish = FinishReason.STOP if is_last else FinishReason.TOOL_CALLS
        if not has_ids:
            return Completion(message, finish)
        ids.extend(draw.choices(range(150_000), k=ADDED))
        output = draw.choices(range(150_000), k=SAMPLED)
        logprobs = [-draw.expovariate(2) for _ in output] if has_logprobs else None
        record = TokenRecord.of(prompt=ids, output=output, logprobs=logprobs)
        ids.extend(output)
        return Completion(message, finish, tokens=record)

    return answer


async def _write(path: Path, *, has_ids: bool, has_logprobs: bool) -> int:
    """Write runs to a journal, and return the bytes of their events."""
    events = 0
    with open_journal(path) as journal:
        for number in range(RUNS):
            script = _script(has_ids, has_logprobs, number)
            model = ScriptedModel(script, keeps_requests=False)
            agent = Agent(model, tools=[add], policy=Policy(max_steps=None), journal=journal)
            run = await agent.run("Add 1 and 2.", run_id=f"run-{number}")
            events += sum([len(event.to_json()) for event in journal.read(run.run_id)])
    return events


def _size(path: Path) -> int:
    return path.stat().st_size


async def measure() -> list[Figure]:
    """Measure what the ids and log probabilities of 200 tokens a step add, those of the prompts included."""
    events, files = {}, {}
    for name, has_ids, has_logprobs in (("text", False, False), ("ids", True, False), ("all", True, True)):
        with journal_path() as path:
            events[name] = await _write(path, has_ids=has_ids, has_logprobs=has_logprobs)
            files[name] = _size(path)
    count = RUNS * STEPS * SAMPLED
    prompts = RUNS * STEPS * ADDED * _ID_BYTES / count
    file, event = ((sizes["all"] - sizes["text"]) / count for sizes in (files, events))
    logprobs = (events["all"] - events["ids"]) / count
    about = f"each step samples {SAMPLED} tokens, and adds {ADDED} others to the prompt"
    parts = f"{logprobs:.2f} for log probabilities; the ids of prompts are {prompts:.2f} more"
    return [
        Figure("bytes of the journal's file per sampled token, above the text", file, "<= 12", about),
        Figure("bytes of events per sampled token, above the text", event - prompts, "<= 12", parts),
    ]
