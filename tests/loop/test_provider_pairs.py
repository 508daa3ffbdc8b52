"""A session that goes on with a model of another provider, for each ordered pair of providers."""

import itertools
from typing import Any

import pytest
from tests.contract.test_parts import PNG
from tests.loop.test_providers import TOOLS, Talk, call, said
from tests.models.strict.providers import PROVIDERS, StrictServer

from treadle import Agent
from treadle.http.transport import HttpResponse
from treadle.journal.memory import MemoryJournal
from treadle.models import FallbackModel
from treadle.tools.protocol import Attachment

pytestmark = pytest.mark.xdist_group("vendors")
PAIRS = list(itertools.permutations(PROVIDERS, 2))


def agent_of(name: str, answers: list[Any], journal: Any) -> tuple[Agent[Any], StrictServer]:
    server = StrictServer(PROVIDERS[name], answers)
    model = PROVIDERS[name].make(server)
    return Agent(model, tools=TOOLS, instructions="Be brief.", journal=journal), server


@pytest.mark.sets(10)
@pytest.mark.parametrize(("before", "after"), PAIRS)
async def test_a_session_goes_on_with_another_provider(before: str, after: str) -> None:
    is_streamed = bool(PAIRS.index((before, after)) % 2)
    calls = call(call_id="call_2"), call("draw", "{}", "functions.draw:1"), call("fail", "{}", "")
    answers = [
        said("", call()),
        said("One."),
        said("", *calls),
        said("Two."),
        said("", call(call_id="call_5")),
    ]
    broken = HttpResponse(PROVIDERS[before].wire.error(500, "down"), 500)
    talk = Talk(PROVIDERS[before], [*answers, broken], is_streamed=is_streamed)
    sees = PROVIDERS[before].wire_name != "completions" != PROVIDERS[after].wire_name
    async with talk.agent.session("s") as session:
        await session.send("Question 1", **talk.listening)
        run = await session.send(
            "Question 2", attach=[Attachment("image", PNG, "image/png")] * sees, **talk.listening
        )
        assert run.stop_reason == "completed", (run.error, talk.server.refusals)
        # The last turn ends after a result.
        run = await session.send("Question 3", **talk.listening)
        assert run.fault == "infrastructure", run.error
    more = [said("", call(call_id="call_6")), said("Three."), said("", call(call_id="call_7")), said("Four.")]
    agent, server = agent_of(after, more, talk.journal)
    async with agent.session("s") as session:
        assert (await session.finish_turn(**talk.listening)).output == "Three.", server.refusals
        run = await session.send("Question 4", **talk.listening)
        assert run.output == "Four.", (run.error, server.refusals)
    forked, server = agent_of(after, [said("Forked.")], talk.journal)
    run = await forked.fork("s", text="And now?")
    assert run.output == "Forked.", (run.error, server.refusals)
    again, server = agent_of(before, [said("Back.")], talk.journal)
    async with again.session("s") as session:
        run = await session.send("Question 5", **talk.listening)
        assert run.output == "Back.", (run.error, server.refusals)


@pytest.mark.sets(10)
@pytest.mark.parametrize(("first", "second"), PAIRS)
async def test_a_fallback_goes_on_in_the_middle_of_a_turn(first: str, second: str) -> None:
    down = HttpResponse(PROVIDERS[first].wire.error(503, "down"), 503)
    servers = [
        StrictServer(
            PROVIDERS[first], [said("I look.", call()), down, said("", call(call_id="call_3")), down]
        ),
        StrictServer(PROVIDERS[second], [said("", call(call_id="call_2")), said()]),
    ]
    models = [PROVIDERS[name].make(server) for name, server in zip((first, second), servers, strict=True)]
    run = await Agent(FallbackModel(models, cooldown_seconds=0), tools=TOOLS, journal=MemoryJournal()).run(
        "Go."
    )
    assert run.output == "Done.", (run.error, [server.refusals for server in servers])
    assert not [why for server in servers for why in server.refusals]
