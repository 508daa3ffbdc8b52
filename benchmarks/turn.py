"""What memory, tiers and telemetry cost a turn of a session, against a bare session with the same model.

Both sessions have the same turns, one after the other, and every second pair has the opposite order. The model
answers at once, so that all time is Treadle's own. Vectors are random, because the time of a server of embeddings
is not Treadle's.
"""

import time
from collections.abc import Iterable
from pathlib import Path
from statistics import median, quantiles

from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.trace import TracerProvider

from benchmarks.common import Figure, add, journal_path
from benchmarks.memories import choose_questions, make_memories
from benchmarks.recall import COUNT, QUESTIONS, RandomEmbedder, add_random_vectors, fill
from treadle import Agent, Session, open_journal
from treadle.core.spec import MemorySpec
from treadle.core.types import Completion, FinishReason, Message, Request, Role, Usage
from treadle.knowledge.memory import open_memory
from treadle.models import TieredModel
from treadle.models.protocol import Watch
from treadle.models.scripted import call
from treadle.telemetry import JsonlTurnLog, OpenTelemetry

_WARM_UP = 5
_ANSWER = "It was as you say: the amount is in the letter, and the date is the one that was agreed upon."


class _Instant:
    """A model that calls a tool once in each turn, and answers at once."""

    context_tokens = 1_000_000

    def __init__(self, name: str) -> None:
        self.name = name

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """See `Model.infer`."""
        is_answered = request.messages[len(request.messages) - 1].role is Role.TOOL
        calls = () if is_answered else (call("add", {"a": 1, "b": 2}),)
        message = Message(Role.ASSISTANT, _ANSWER if is_answered else "", calls)
        reason = FinishReason.STOP if is_answered else FinishReason.TOOL_CALLS
        tokens = sum([len(item.content) for item in request.messages]) // 4
        return Completion(message, reason, Usage(tokens, 25), 0.001, self.name)


async def measure() -> list[Figure]:
    """Measure with each router, with words alone and with vectors."""
    made = make_memories(COUNT)
    # A question that was asked before would be merged with its episode, which costs less than a new one.
    asked = [made[number].question for number in choose_questions(made, 3 * (_WARM_UP + QUESTIONS))]
    figures = []
    with journal_path() as path:
        with open_journal(path) as journal:
            fill(open_memory(journal, "bench", "bench"), made)
        for number, (router, has_vectors) in enumerate(
            (("rules", False), ("scored", False), ("scored", True))
        ):
            if has_vectors:
                with open_journal(path) as journal:
                    add_random_vectors(open_memory(journal, "bench", "bench"))
            figures.append(await _measure(path, asked[number::3], router, has_vectors=has_vectors))
    return figures


async def _measure(path: Path, questions: list[str], router: str, *, has_vectors: bool) -> Figure:
    bare_path = path.with_name("bare.db")
    log = JsonlTurnLog(path.with_name("turns.jsonl"))
    tiers = TieredModel(
        {name: _Instant(f"bench:{name}") for name in ("frontier", "mid", "small")}, router=router
    )
    with open_journal(path) as journal, open_journal(bare_path) as beside:
        full = Agent(
            tiers,
            tools=[add],
            memory=MemorySpec(persona="bench", user="bench", writes_back=True),
            hooks=[log, OpenTelemetry(TracerProvider(), MeterProvider())],
            journal=journal,
        )
        if has_vectors:
            assert full.known is not None
            assert full.known.memory is not None
            full.known.memory.embedder = RandomEmbedder()
        bare = Agent(_Instant("bench:bare"), tools=[add], journal=beside)
        async with full.session() as first, bare.session() as second:
            found = await _in_pairs(first, second, questions)
        await full.close()
    more = [one[0] - other[0] for one, other in found]
    cpu = [one[1] - other[1] for one, other in found]
    detail = (
        f"medians of {len(found)} turns: {_ms(one[0] for one, _ in found)} ms against "
        f"{_ms(other[0] for _, other in found)}; by processor time {_ms(cpu)} more; 95 % of the turns take at most "
        f"{quantiles(more, n=20)[-1] * 1e3:.1f} ms more"
    )
    what = f"router {router}, {'words and vectors' if has_vectors else 'words alone'}"
    return Figure(f"own ms of a turn over a bare one, {what}", median(more) * 1e3, "<= 10", detail)


async def _in_pairs(
    first: Session, second: Session, questions: list[str]
) -> list[tuple[tuple[float, float], tuple[float, float]]]:
    """Send each question to both sessions, and return the wall-clock and processor times in seconds."""
    found = []
    for number, question in enumerate(questions):
        if number % 2:
            pair = await _send(first, question), await _send(second, question)
        else:
            other = await _send(second, question)
            pair = await _send(first, question), other
        found.append(pair)
    return found[_WARM_UP:]


async def _send(session: Session, text: str) -> tuple[float, float]:
    began, began_cpu = time.perf_counter(), time.process_time()
    run = await session.send(text)
    took = time.perf_counter() - began, time.process_time() - began_cpu
    assert run.stop_reason == "completed", run.error
    return took


def _ms(seconds: Iterable[float]) -> str:
    return f"{median(seconds) * 1e3:.2f}"
