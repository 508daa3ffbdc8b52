"""A real model with random weights on the endpoints of the mock engines: its logprobs are those of its rows."""

import pytest
from tests.rollout.engines import ENDPOINTS, check, connect

from treadle import Agent, Policy
from treadle.journal.memory import MemoryJournal
from treadle.testbed.engines import ENGINES, EngineSettings
from treadle.testbed.server import serve
from treadle.trajectory.tokens import load_tokens

TOLERANCE = 1e-4
pytestmark = pytest.mark.xdist_group("training")


@pytest.mark.parametrize("endpoint", list(ENDPOINTS))
async def test_a_forward_pass_over_a_row_gives_the_logprobs_of_its_tokens(tmp_path, endpoint):
    """Several turns with answers that end by themselves or are cut off, which are random ids and often no text."""
    torch = pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from tests.rollout.torch_policy import make_tiny

    kind, _ = ENDPOINTS[endpoint]
    policy = make_tiny(seed=3)
    # Let answers end by themselves now and then.
    policy.network.lm_head.weight.data[policy.template.end] *= 8
    app = ENGINES[kind](EngineSettings(model="oracle"), policy)
    server = await serve(app=app)
    made = connect(endpoint, "oracle", server.url, tmp_path, max_output_tokens=24, seed=1)
    agent = Agent(made, tools=["files"], journal=MemoryJournal(), policy=Policy(max_steps=2))
    async with agent.session("talk", files={"a.md": "one"}) as session:
        for text in ("Read a.md.", "Once more, é?", "And now?"):
            await session.send(text)
    await server.close()
    graph = load_tokens(agent.journal, "talk")
    check(app, graph)
    trained = 0
    for row in graph.trajectories:
        with torch.no_grad():
            again = policy.logprobs(row.token_ids_T).tolist()
        for at in range(1, len(row.token_ids_T)):
            if row.sampled_T[at]:
                assert again[at - 1] == pytest.approx(row.logprobs_T[at], abs=TOLERANCE)
                trained += 1
    assert trained == sum(len(answer.token_ids) for answer in app.sampled) > 30
