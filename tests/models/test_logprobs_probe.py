"""What an engine's log probabilities are of, as its answers show, with engines that sample in each way."""

import math
import random

import pytest
from tests.models.answers import answer

from treadle import model
from treadle.core.types import Settings
from treadle.models import HttpResponse, InProcessTransport
from treadle.models.config.logprobs_probe import find_logprobs_mode

SIZE = 50


class Sampler:
    """An engine that samples from fixed logits, and returns log probabilities of one of the modes."""

    def __init__(self, mode, *, takes_seeds=True, **defaults):
        self.mode = mode
        self.takes_seeds = takes_seeds
        self.defaults = defaults

    def __call__(self, request):
        if not request.body:
            return HttpResponse({}, 404)
        asked = self.defaults | request.json()
        draw = random.Random(asked.get("seed") if self.takes_seeds else None)
        ids, values = [], []
        for position in range(asked["max_tokens"]):
            number, value = self._draw(asked, position, draw)
            ids.append(number)
            values.append(value)
        raw = answer("text")
        raw["choices"][0] |= {
            "token_ids": ids,
            "logprobs": {
                "content": [
                    {"token": f"token_id:{one}", "logprob": value}
                    for one, value in zip(ids, values, strict=True)
                ]
            },
        }
        raw |= {"prompt_token_ids": [1], "usage": {"prompt_tokens": 1, "completion_tokens": len(ids)}}
        return HttpResponse(raw)

    def _draw(self, asked, position, draw):
        temperature, top_p, top_k = (
            asked.get("temperature", 1.0),
            asked.get("top_p", 1.0),
            asked.get("top_k", -1),
        )
        raw = [random.Random(f"{position}/{number}").gauss(0, 2) for number in range(SIZE)]
        scaled = [value / temperature for value in raw]
        order = sorted(range(SIZE), key=scaled.__getitem__, reverse=True)[: top_k if top_k > 0 else SIZE]
        kept, mass = set(), 0.0
        for number in order:
            if mass < top_p:
                kept.add(number)
                mass += math.exp(log_softmax(scaled, number))
        processed = [value if number in kept else -math.inf for number, value in enumerate(scaled)]
        weights = [math.exp(log_softmax(processed, number)) for number in range(SIZE)]
        chosen = draw.choices(range(SIZE), weights)[0]
        logits = {"raw": raw, "scaled": scaled, "processed": processed}[self.mode]
        return chosen, log_softmax(logits, chosen)


def log_softmax(logits, number):
    return logits[number] - math.log(sum([math.exp(value) for value in logits]))


async def find(server, **own):
    def make(**settings):
        options = {"base_url": "http://h/v1", "transport": InProcessTransport(server)}
        return model("openai:m", **options, **{**own, **settings})

    mode = await find_logprobs_mode(make, Settings(**own))
    return mode, Settings(**own, logprobs_mode=mode).has_policy_logprobs


@pytest.mark.parametrize("mode", ["raw", "scaled", "processed"])
async def test_the_mode_is_found(mode):
    assert await find(Sampler(mode)) == (mode, True)


@pytest.mark.parametrize("mode", ["raw", "scaled"])
@pytest.mark.parametrize("defaults", [{"top_k": 3}, {"temperature": 0.5}, {"top_p": 0.6}])
async def test_settings_of_the_server_are_found(mode, defaults):
    """A model's own settings, which its server uses where a request has none, change what is sampled."""
    assert await find(Sampler(mode, **defaults)) == (f"{mode}_defaults", None)
    assert await find(Sampler("processed", **defaults)) == ("processed", True)
    every = {"temperature": 1.0, "top_p": 1.0, "extra": {"top_k": -1, "min_p": 0, "repetition_penalty": 1}}
    assert await find(Sampler(mode, **defaults), **every) == (mode, True)


@pytest.mark.parametrize("mode", ["raw", "scaled"])
async def test_a_server_that_ignores_seeds_may_have_settings(mode):
    """Its answers differ in any case, so that only a request without gaps is known."""
    server = Sampler(mode, takes_seeds=False)
    assert await find(server) == (f"{mode}_defaults", None)
    every = {"temperature": 1.0, "top_p": 1.0, "extra": {"top_k": -1, "min_p": 0, "repetition_penalty": 1}}
    assert (await find(server, **every))[1] is True
    assert (await find(server, temperature=1.0, top_p=0.9))[1] is False


@pytest.mark.parametrize(
    ("settings", "raw", "scaled"),
    [
        ({"temperature": 1.0, "top_p": 1.0}, True, True),
        ({"temperature": 0.7}, False, True),
        ({"top_p": 0.9}, False, False),
        ({"extra": {"top_k": 20}}, False, False),
        ({"extra": {"presence_penalty": 0.5}}, False, True),
        ({"extra": {"temperature": 0.7}}, False, True),
        ({"extra": {"chat_template_kwargs": {"enable_thinking": False}}}, True, True),
    ],
)
def test_the_settings_decide_whether_they_are_the_policys(settings, raw, scaled):
    found = [
        Settings(**settings, logprobs_mode=mode).has_policy_logprobs
        for mode in ("raw", "scaled", "processed", None)
    ]
    assert found == [raw, scaled, True, None]


async def test_a_server_that_refuses_leaves_it_open():
    assert await find(lambda request: HttpResponse({"error": {"message": "no"}}, 400)) == (None, None)
