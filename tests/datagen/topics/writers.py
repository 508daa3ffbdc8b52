"""Models that write subtopics, as the requests ask for them."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

from treadle.core.types import Completion, Request
from treadle.models.protocol import Watch
from treadle.models.scripted import Answer, ScriptedModel
from treadle.tasks.draws import Draw
from treadle.testbed.request_facts import read_facts

Json = Any
Write = Callable[[dict[str, Json]], Any]
"""A function of the facts of a request that returns an answer, or a list of subtopics."""


def facts_of(request: Request) -> dict[str, Json]:
    """Return the facts of a request."""
    found = read_facts(next(item.content for item in request.messages if item.role == "user"))
    assert found is not None
    return found


def number(facts: dict[str, Json]) -> list[str]:
    """Return subtopics that differ everywhere: the numbers of the path and their own."""
    parent = facts["path"][-1].partition(" ")[0] if len(facts["path"]) > 1 else "t"
    begin = len([item for item in facts["existing"] if item["topic"].startswith(f"{parent}x")])
    return [f"{parent}x{begin + index} word" for index in range(facts["count"])]


def encode(subtopics: list[Json], mode: str) -> str:
    """Return the answer with `subtopics`, texts or objects."""
    entries = [item if isinstance(item, dict) else {"topic": item} for item in subtopics]
    if mode == "graph":
        entries = [{"connections": [], **item} for item in entries]
    return json.dumps({"subtopics": entries})


class Writer(ScriptedModel):
    """A model that answers with a function of the facts; `delay` returns how long each answer takes."""

    def __init__(
        self,
        write: Write = number,
        *,
        delay: Callable[[dict[str, Json]], float] | None = None,
        keeps_requests: bool = True,
    ) -> None:
        super().__init__(self._answer_facts, keeps_requests=keeps_requests)
        self._write = write
        self._delay = delay
        self.begun: list[tuple[str, ...]] = []
        """The paths of the requests, in order."""
        self.ended: list[tuple[str, ...]] = []

    def _answer_facts(self, request: Request) -> Answer:
        facts = facts_of(request)
        answer = self._write(facts)
        if isinstance(answer, list) and all(isinstance(item, str | dict) for item in answer):
            return encode(answer, facts["mode"])
        return answer

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """See `Model.infer`."""
        facts = facts_of(request)
        self.begun.append(tuple(facts["path"]))
        if self._delay is not None:
            await asyncio.sleep(self._delay(facts))
        found = await super().infer(request, watch)
        self.ended.append(tuple(facts["path"]))
        return found

    @property
    def facts(self) -> list[dict[str, Json]]:
        """The facts of the requests, in order."""
        return [facts_of(request) for request in self.requests]


WORDS = [
    "red", "blue", "green", "stone", "water", "light", "sound", "paper", "metal", "glass", "river", "cloud",
    "apple", "bread", "horse", "tiger", "north", "south", "music", "dance", "house", "tower", "field", "ocean",
]  # fmt: skip


def sloppy(facts: dict[str, Json]) -> list[Json]:
    """Return the answer of a poor model: too many or too few, repeated, and linked to anything.

    It depends on the whole request, so that a request that changed shows in the graph.
    """
    draw = Draw(json.dumps(facts, sort_keys=True))
    ids = [item["id"] for item in facts["existing"]]
    found: list[Json] = []
    for _ in range(max(1, facts["count"] + draw.between(-2, 1))):
        topic = f"{draw.pick(WORDS)} {draw.pick(WORDS)} {draw.pick(WORDS[:6])}"
        links = draw.sample(ids, min(len(ids), draw.below(4))) + ["0123456789abcdef"] * draw.chance(0.3)
        found.append({"topic": topic, **({"connections": links} if facts["mode"] == "graph" else {})})
    return found
