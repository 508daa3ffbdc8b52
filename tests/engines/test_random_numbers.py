"""The random numbers of real engines, which follow from seeds: steps of one run must not draw the same ones."""

import asyncio
from collections import Counter
from dataclasses import dataclass

import pytest
from tests.engines.engine_server import NAME, EngineServer
from tests.rollout.engines import connect

from treadle import model
from treadle.core.log import Log
from treadle.core.types import Message, Request, Role, Settings
from treadle.models.config.logprobs_probe import find_logprobs_mode
from treadle.models.protocol import Watch

pytestmark = [pytest.mark.xdist_group("engines"), pytest.mark.full]
COUNT = 100
SEED_NAMES = {
    "vllm_chat": "seed",
    "vllm_completions": "seed",
    "vllm_generate": "seed",
    "sglang_chat": "seed",
    "sglang_generate": "sampling_seed",
}
"""How the endpoints call a seed."""


@dataclass
class Asker:
    """Asks an endpoint for answers of one token."""

    endpoint: str
    engine: EngineServer

    async def ask(self, texts, **options):
        """Return the answers to requests whose last messages are `texts`."""
        options = {"temperature": 1.5, "max_output_tokens": 1, "extra": None, **options}
        if not self.endpoint.endswith("chat"):
            options["renderer"] = f"hf:{self.engine.model}"
        made = connect(self.endpoint, NAME, self.engine.url, self.engine.model, **options)
        begin = [Message(Role.USER, "Hello."), Message(Role.ASSISTANT, "Yes?")]
        asked = [Request(Log([*begin, Message(Role.USER, text)]), ()) for text in texts]
        return [(await made.infer(request, Watch())).message.content for request in asked]

    async def ask_with(self, make_options, *texts):
        """Return the answers for every seed, given what makes options of a seed."""
        allowed = asyncio.Semaphore(16)

        async def ask(seed):
            async with allowed:
                return await self.ask(texts, **make_options(seed))

        return await asyncio.gather(*[ask(seed) for seed in range(COUNT)])


@pytest.fixture
def asker(request, endpoint):
    """Asks an engine that does not ignore seeds."""
    name = "seeded" if endpoint.startswith("sglang") else "vllm"
    return Asker(endpoint, request.getfixturevalue(name))


@pytest.mark.parametrize("endpoint", list(SEED_NAMES))
async def test_steps_draw_random_numbers_of_their_own(asker, endpoint):
    """Two requests that hardly differ get equal answers more often than by chance only if their seeds are equal."""
    asked = ("Name 3 of them.", "Name 4 of them.")
    pairs = await asker.ask_with(lambda seed: {"seed": seed}, *asked)
    assert abs(find_excess(pairs)) < 0.1
    # A seed among the additional fields is sent as it is.
    name = SEED_NAMES[endpoint]
    pairs = await asker.ask_with(lambda seed: {"extra": {name: seed}}, *asked)
    assert find_excess(pairs) > 0.15


@pytest.mark.parametrize("endpoint", list(SEED_NAMES))
async def test_a_step_is_sampled_again_with_its_seed(asker, endpoint):
    """The same request with the same seed has the same answer."""
    first, second = [await asker.ask_with(lambda seed: {"seed": seed}, "Name 3 of them.") for _ in range(2)]
    equal = sum(one == other for one, other in zip(first, second, strict=True))
    print(f"{equal} of {COUNT} are equal, with {len({text for (text,) in first})} different answers")
    # Requests that are computed together may differ by rounding.
    assert equal >= COUNT - 2
    assert len({text for (text,) in first}) > 3


async def test_what_logprobs_of_an_engine_with_seeds_are_of(seeded):
    """With seeds, it can be told whether SGLang has sampling settings of its own."""
    asked = {"temperature": 0.7, "top_p": 0.9}

    def make(**settings):
        return model(f"sglang:{NAME}", base_url=seeded.url, **{**asked, **settings})

    assert await find_logprobs_mode(make, Settings(**asked)) == "scaled"


def find_excess(pairs):
    """Return how much more often the texts of one pair are equal than those of any two pairs."""
    firsts, seconds = (Counter(texts) for texts in zip(*pairs, strict=True))
    equal = sum(first == second for first, second in pairs) / len(pairs)
    by_chance = sum(count * seconds[text] for text, count in firsts.items()) / len(pairs) ** 2
    print(f"equal {equal:.3f}, by chance {by_chance:.3f}")
    return equal - by_chance
