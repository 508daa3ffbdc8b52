"""The common part of the mock engines: their settings, their weights, and the answers that they work on.

An engine keeps every answer that it sampled (`EngineApp.sampled`), so that tests can compare them with what was
delivered.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import lru_cache
from itertools import islice
from typing import ClassVar
from zlib import crc32

import msgspec

from treadle.core.errors import ConfigError
from treadle.core.tokens.packed import pack_ids
from treadle.core.types import Json
from treadle.models.dialects.openai_chat.served import to_events, to_wire
from treadle.tasks.draws import fraction
from treadle.testbed.built_in import digest, stream
from treadle.testbed.engines.answering_work import AnswerWork, IdsRequest, SampledAnswer
from treadle.testbed.engines.engine_wire import (
    DetokenizeRequest,
    EngineChat,
    TokenizeRequest,
    count_tokens,
    read_answer,
)
from treadle.testbed.engines.token_policy import DrawnToken, TokenPolicy, make_policy
from treadle.testbed.server.oracle_app import (
    ORACLE,
    HttpReply,
    OracleApp,
    ServerSettings,
    error_reply,
    json_reply,
    stream_reply,
)

_MAX_REMEMBERED = 100_000


class EngineKind(StrEnum):
    """An engine whose endpoints the server has."""

    VLLM = "vllm"
    SGLANG = "sglang"


class EngineSettings(ServerSettings, frozen=True, kw_only=True):
    """The behaviour of a mock engine."""

    model: str = ORACLE
    """The model for requests that do not name one."""
    max_tokens: int = 32_768
    """The most ids that a prompt and its answer may have together."""
    cut_rate: float = 0.0
    """The share of answers that end early, as if they had reached their limit of tokens."""
    abort_rate: float = 0.0
    """The share of answers that the engine aborts in the middle."""
    routed_experts: tuple[int, int] | None = None
    """The layers of a mixture of experts and how many experts each chooses, which answers then tell, those of
    SGLang if they are asked."""
    tells_masks: bool = False
    """True if vLLM's endpoint of ids, and SGLang if it is asked, tells which tokens each token was chosen from."""
    latency_tail: float = 0.0
    """The exponent of the Pareto distribution by which latencies grow beyond `latency_seconds`; 0 for no growth. At
    1.5, one answer in a hundred takes more than twenty times as long."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("cut_rate", "abort_rate"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ConfigError(f"{name} is {getattr(self, name)!r}; give a number from 0 to 1")
        if self.latency_tail and self.latency_tail <= 1.0:
            raise ConfigError(f"latency_tail is {self.latency_tail!r}; give 0, or a number above 1")


class EngineApp(OracleApp):
    """An application that answers as an engine does. Subclasses have the endpoints."""

    settings: EngineSettings
    asked = "a request for {}"
    owner: ClassVar[str]
    """Who owns the models, as `/v1/models` says."""
    detokenized: ClassVar[str]
    """The field of `/detokenize` with the text."""

    def __init__(self, settings: EngineSettings | None = None, policy: TokenPolicy | None = None) -> None:
        """Make an application; `policy` answers all requests, or else the built-in model that they name.

        Raises: `ConfigError` if there is no model with the name in the settings.
        """
        super().__init__(settings or EngineSettings())
        self.sampled: list[SampledAnswer] = []
        """Every answer that was sampled, including those that no client received."""
        self.version = "0"
        """The version of the weights."""
        self.is_paused = False
        self._running: dict[str, AnswerWork] = {}
        self._asked: Counter[int] = Counter()
        self._only_policy = policy
        self._policies = lru_cache(maxsize=64)(make_policy)
        self.policy("")

    def policy(self, model: str) -> TokenPolicy:
        """Return the policy of a model; an empty name stands for the model of the settings.

        Raises: `ConfigError` if there is no such model.
        """
        name = model or self.settings.model
        return self._only_policy or self._policies(name, self.settings.mistake_rate)

    # Answers

    def begin(self, ask: IdsRequest, write: Callable[[SampledAnswer], HttpReply]) -> HttpReply:
        """Return the response to a request for ids. `write` makes it from the answer."""
        room = self.settings.max_tokens - len(ask.prompt_ids)
        if room <= 0:
            return error_reply(
                400,
                f"This model's maximum context length is {self.settings.max_tokens} tokens. However, your prompt "
                f"has {len(ask.prompt_ids)} tokens. Please reduce the length of the input.",
                "context_length_exceeded",
            )
        prompt = crc32(pack_ids(ask.prompt_ids))
        if len(self._asked) > _MAX_REMEMBERED:
            self._asked.clear()
        number = ask.number = self._asked[prompt]
        self._asked[prompt] += 1
        seed = f"{number if ask.seed is None else ask.seed}/{self.settings.seed}/{prompt}"
        ask.request_id = ask.request_id or ask.prefix + digest(f"{number}/{seed}")
        work = AnswerWork(self, ask, write, seed, room, self._draw_seconds(seed))
        if not work.seconds and not self.is_paused:
            return work.finish()
        return HttpReply(200, (), {}, pending=work)

    def draw(
        self, ask: IdsRequest, ids: Sequence[int], seed: str, version: str, room: int
    ) -> list[DrawnToken]:
        """Return what the model samples after the prompt of `ask` and the ids that it has sampled already."""
        policy = self.policy(ask.model)
        drawn: list[DrawnToken] = []
        found = policy.sample([*ask.prompt_ids, *ids], version, f"{seed}/{len(ids)}", ask.temperature)
        for item in islice(found, room):
            drawn.append(item)
            if item.token_id in ask.stop_ids:
                break
        return drawn

    def _draw_seconds(self, seed: str) -> float:
        settings = self.settings
        if settings.slow_share and fraction(settings.seed, "slow", seed) < settings.slow_share:
            return settings.slow_latency_seconds
        if not settings.latency_tail:
            return settings.latency_seconds
        draw = fraction(settings.seed, "tail", seed)
        return settings.latency_seconds * min(100.0, math.pow(1.0 - draw, -1.0 / settings.latency_tail))

    @property
    def is_working(self) -> bool:
        """True if the engine works on an answer."""
        return bool(self._running)

    def add(self, work: AnswerWork) -> None:
        """Keep the work on an answer until it is done."""
        self._running[work.ask.request_id] = work

    def remove(self, work: AnswerWork) -> None:
        """Forget the work on an answer."""
        if self._running.get(work.ask.request_id) is work:
            del self._running[work.ask.request_id]

    # Weights

    def abort(self, request_id: str | None = None) -> int:
        """End the answers in progress, or one of them, with the ids that they have. Return how many were ended."""
        running = [
            work for name, work in list(self._running.items()) if request_id is None or name == request_id
        ]
        for work in running:
            work.abort()
        return len(running)

    def pause(self, *, stops_running: bool = True) -> None:
        """Begin no answer until `resume` is called. With `stops_running`, answers in progress are paused too."""
        self.is_paused = True
        for work in list(self._running.values()) if stops_running else ():
            work.stop()

    def resume(self) -> None:
        """Continue after `pause`."""
        self.is_paused = False
        for work in list(self._running.values()):
            work.go()

    def set_version(self, version: str) -> None:
        """Change the weights. Answers in progress keep the ids that have appeared; the new weights go on."""
        for work in list(self._running.values()):
            work.renew(version)
        self.version = version

    def when_idle(self, reply: HttpReply) -> HttpReply:
        """Return a response that is sent when no answer is in progress."""
        return HttpReply(200, (), {}, pending=_Idle(self._running, reply)) if self._running else reply

    # What the endpoints share

    def chat(self, asked: EngineChat) -> HttpReply:
        """Return the response to a request of chat completions."""
        tools = asked.told()
        template = self.policy(asked.model).template
        prompt = template.render(asked.said(), tools)

        def write(answer: SampledAnswer) -> HttpReply:
            completion = read_answer(answer, template, tools)
            reason = completion.finish_reason.value if answer.finish == "stop" else answer.finish
            if asked.stream:
                events = to_events(completion, asked.model, stream(completion.message), asked.has_usage)
                for event in events:
                    event["id"] = answer.request_id
                    if event["usage"] is not None:
                        event["usage"] = count_tokens(answer)
                choices = [event["choices"][0] for event in events if event["choices"]]
                choices[-1]["finish_reason"] = reason
                self.dress_stream(asked, answer, events[0], choices)
                return stream_reply(events)
            wire = to_wire(completion, asked.model) | {"id": answer.request_id, "usage": count_tokens(answer)}
            wire["choices"][0]["finish_reason"] = reason
            self.dress(asked, answer, wire, wire["choices"][0])
            return json_reply(200, wire)

        return self.begin(asked.ask(prompt), write)

    def experts(self, answer: SampledAnswer) -> list[int]:
        """Return the experts of all tokens of a prompt and its answer but the last, one layer after the other."""
        layers, chosen = self.settings.routed_experts or (0, 0)
        ids = [*answer.prompt_ids, *answer.token_ids][:-1]
        return [(number + 7 * place) % 64 for number in ids for place in range(layers * chosen)]

    def dress(
        self, asked: EngineChat, answer: SampledAnswer, wire: dict[str, Json], choice: dict[str, Json]
    ) -> None:
        """Add the engine's own fields to a chat completion and its choice."""
        raise NotImplementedError

    def dress_stream(
        self, asked: EngineChat, answer: SampledAnswer, first: dict[str, Json], choices: list[dict[str, Json]]
    ) -> None:
        """Add the engine's own fields to the first event and to the choices of a streamed chat completion."""

    def inform(self, path: str, query: str, body: bytes) -> HttpReply:
        try:
            if path.endswith("/detokenize"):
                told = msgspec.json.decode(body, type=DetokenizeRequest)
                text = self.policy(told.model).template.bpe.decode(told.tokens)
                return json_reply(200, {self.detokenized: text})
            if path.endswith("/tokenize"):
                return json_reply(200, self._tokenize(body))
            if path == "/v1/models":
                entry = {"object": "model", "created": 0, "owned_by": self.owner}
                entry |= {"id": self.settings.model, "max_model_len": self.settings.max_tokens}
                return json_reply(200, {"object": "list", "data": [entry]})
            asked = msgspec.json.decode(body, type=dict[str, Json]) if body.strip() else {}
            return self.manage(path, query, asked)
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            return error_reply(400, f"the body is not a request for {path}: {error!r}", "invalid_body")

    def manage(self, path: str, query: str, asked: dict[str, Json]) -> HttpReply:
        """Return the response to a request about the engine and its weights. Raises: `KeyError`, `ValueError`."""
        raise NotImplementedError

    def _tokenize(self, body: bytes) -> Json:
        asked = msgspec.json.decode(body, type=TokenizeRequest)
        template = self.policy(asked.model).template
        if asked.prompt is None:
            chat = msgspec.json.decode(body, type=EngineChat)
            ids = template.render(chat.said(), chat.told())
        else:
            ids = template.bpe.encode_marked(asked.prompt)
        return {
            "count": len(ids),
            "max_model_len": self.settings.max_tokens,
            "tokens": ids,
            "token_strs": [template.bpe.decode([number]) for number in ids],
        }


class _Idle:
    """A response that waits until all running work is done. See `PendingReply`."""

    def __init__(self, running: dict[str, AnswerWork], reply: HttpReply) -> None:
        self._left = list(running.values())
        self._reply = reply
        self._done: Callable[[HttpReply], None] | None = None

    def start(self, done: Callable[[HttpReply], None]) -> None:
        self._done = done
        for work in self._left:
            work.watchers.append(self._look)

    def _look(self, work: AnswerWork) -> None:
        self._left.remove(work)
        if not self._left and self._done is not None:
            self._done(self._reply)

    def cancel(self) -> None:
        self._done = None
