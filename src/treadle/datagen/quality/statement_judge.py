"""A judge of statements: a model that sees each statement beside the requests, calls and results."""

import hashlib
from collections.abc import Sequence
from typing import Literal

import msgspec
from msgspec import Struct
from pydantic import BaseModel

from treadle.agent.agent import Agent
from treadle.core.types import Fault, Json, Message, Role, Usage
from treadle.datagen.conversations.dialogue import labels
from treadle.datagen.quality.protocol import Candidate
from treadle.datagen.quality.statements.statements import AnswerStatement
from treadle.datagen.scenarios.scenario import write_facts
from treadle.datagen.scenarios.scenario_writer import PROMPTS
from treadle.models.protocol import Model
from treadle.runs.run import Run
from treadle.scoring.scorers import check_judgement
from treadle.workers.registry import HereWorkers

_MAX_CHARS = 6000
"""How much of each result the judge reads."""


class StatementVerdicts(BaseModel):
    """A judge's answer."""

    verdicts: list[Literal["yes", "no", "not_said"]]


class JudgedStatements(Struct, frozen=True):
    """What a judge said about statements, in their order, and what this used."""

    are_shown: tuple[bool, ...] | None
    """Which statements are shown; `None` if the judge could not judge them."""
    usage: Usage = Usage()
    cost_usd: float | None = 0.0


async def judge_statements(
    model: Model,
    candidate: Candidate,
    messages: Sequence[Message],
    statements: Sequence[AnswerStatement],
    dataset: str,
    *,
    number: int = 1,
) -> JudgedStatements:
    """Return which statements the messages show, which are those of the candidate or the first of them.

    The judgement is a run in the dataset's journal, so that it is not paid for twice; `number` tells several
    judgements of the same statements apart.

    A judge that does not give one verdict for each statement has not judged them. Raises: `ServerError` if the
    judge could not be asked.
    """
    if not statements:
        return JudgedStatements(())
    request = write_facts(_write_facts(messages, statements))
    digest = hashlib.sha256(f"{number}\n{request}".encode()).hexdigest()[:8]
    agent = Agent(
        model,
        instructions=PROMPTS["judge"]["statements"],
        schema=StatementVerdicts,
        journal=candidate.journal,
    )
    workers = candidate.workers or HereWorkers()
    run: Run[StatementVerdicts] = await workers.run(
        agent,
        f"{candidate.run_id}-judge-{digest}",
        request,
        metadata=labels(dataset, "judge", candidate.spec.sample_id, number),
    )
    found = [] if run.fault is Fault.MODEL else check_judgement(run).verdicts
    is_judged = len(found) == len(statements)
    shown = tuple([item == "yes" for item in found]) if is_judged else None
    return JudgedStatements(shown, run.usage, run.cost_usd)


def _write_facts(messages: Sequence[Message], statements: Sequence[AnswerStatement]) -> dict[str, Json]:
    results = {item.call_id: item for item in messages if item.role is Role.TOOL}
    calls: list[Json] = []
    for message in messages:
        for call in message.tool_calls:
            if (result := results.get(call.call_id)) is not None:
                calls.append(
                    {
                        "name": call.name,
                        "arguments": call.arguments,
                        "result": result.content[:_MAX_CHARS],
                        "is_error": result.is_error,
                    }
                )
    listed: list[Json] = [{"statement": item.text, "sentence": item.sentence.strip()} for item in statements]
    facts: dict[str, Json] = {
        "write": "statement_verdicts",
        "requests": [item.content for item in messages if item.role is Role.USER],
        "calls": calls,
        "statements": listed,
    }
    return msgspec.convert(facts, dict[str, Json])
