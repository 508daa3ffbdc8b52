"""Updates of weights while answers are under way, over real sockets."""

import asyncio

import msgspec
import pytest
from tests.models.answers import REQUEST
from tests.models.server import Reply, serve
from tests.models.tokens.recorded import IDS, LOGPROBS, PROMPT, VLLM_COMPLETION, VLLM_COMPLETION_EVENTS, sse

from treadle.core.errors import ConfigError, ServerError
from treadle.core.tokens.packed import pack_logprobs, unpack_ids
from treadle.core.types import FinishReason, Settings
from treadle.models import OpenAIChatModel, RetryModel, ScriptedModel, Watch
from treadle.models.tokens.control import SglangControl, VllmControl
from treadle.models.tokens.engines.vllm import VllmCompletions
from treadle.models.tokens.weights import UpdateMode, Weights

LIMIT = Settings(max_output_tokens=16)
CHAT = {
    "choices": [{"index": 0, "message": {"role": "assistant", "content": "Hi."}, "finish_reason": "stop"}],
    "model": "m",
}


class Engine:
    """A server whose answers wait for `go` after their first piece, with the control of vLLM."""

    def __init__(self, *, is_stream=True, version="0.20.0", is_whole=True):
        self.version = version
        self.is_whole = is_whole
        self.go = asyncio.Event()
        self.begun = asyncio.Event()
        self.is_stream = is_stream
        self.is_aborting = False
        self.holds = False
        """True if a pause does not answer what is under way."""
        self.paused: list[str] = []

    def __call__(self, request):
        if request.path.startswith(("/pause", "/resume", "/update_weight_version")):
            self.paused.append(request.path)
            if request.path == "/pause?mode=abort":
                self.is_aborting = True
                if not self.holds:
                    self.go.set()
            if request.path == "/resume":
                self.go.set()
            return Reply({})
        if request.path.endswith("/chat/completions"):
            self.begun.set()
            return Reply(CHAT, before=self.go)
        if request.path == "/v1/models":
            return Reply({"object": "list", "data": [{"id": "m", "owned_by": "vllm"}]})
        if request.path == "/version":
            return Reply({"version": self.version})
        if request.path != "/v1/completions":
            return Reply({}, 404)
        self.begun.set()
        if self.is_stream:
            return Reply(pieces=self.pieces(), between=self.go)
        return Reply(VLLM_COMPLETION, before=self.go)

    def pieces(self):
        yield sse(VLLM_COMPLETION_EVENTS[:1])
        rest = VLLM_COMPLETION_EVENTS[1:]
        if self.is_aborting:
            last = msgspec.json.decode(rest[0])
            last["choices"][0] |= {"token_ids": [], "logprobs": None, "finish_reason": "abort"}
            rest = [msgspec.json.encode(last), b"[DONE]"]
        elif self.version == "0.33.0":
            rest = [with_versions(rest[0]), *rest[1:]] if self.is_whole else []
        yield sse(rest)


def with_versions(event):
    """Return the last event of an answer with the weights that sampled its tokens."""
    last = msgspec.json.decode(event)
    spans = [{"version": "1", "start": 0, "end": 1}, {"version": "2", "start": 1, "end": 4}]
    last["choices"][0]["weight_versions"] = spans
    return msgspec.json.encode(last)


class Sampled:
    """An answer under way, and the ids that have come."""

    def __init__(self, server, weights, *, is_stream=True):
        engine = VllmCompletions("m", base_url=server.base_url)
        weights.attach(engine)
        self.ids: list[int] = []
        self.first = asyncio.Event()
        watch = Watch(on_token_ids=self._hear if is_stream else None)
        self.task = asyncio.create_task(engine.generate(PROMPT, LIMIT, (), watch))

    def _hear(self, ids):
        self.ids += ids
        self.first.set()


async def nothing():
    """Load nothing."""


async def settle():
    """Let all tasks run that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_wait_lets_answers_finish_with_the_old_weights_and_new_ones_wait():
    weights, engine = Weights("1"), Engine()
    async with serve(engine) as server:
        first = Sampled(server, weights)
        await first.first.wait()
        update = asyncio.create_task(weights.update("2", nothing))
        await settle()
        second = Sampled(server, weights)
        await settle()
        assert (weights.version, update.done(), second.ids) == ("1", False, [])
        engine.go.set()
        await update
        made, later = await first.task, await second.task
    assert (made.weight_version, made.versions, made.finish) == ("1", (), FinishReason.STOP)
    assert later.weight_version == "2"


@pytest.mark.parametrize("has_control", [False, True])
async def test_abort_keeps_what_was_sampled_as_an_aborted_answer(has_control):
    """Rules out the defect that an interrupted generation loses the tokens that were sampled before."""
    engine = Engine()
    async with serve(engine) as server:
        weights = Weights("1", [VllmControl("m", base_url=server.base_url)] if has_control else [])
        first = Sampled(server, weights)
        await first.first.wait()
        await weights.update("2", nothing, "abort")
        made = await first.task
        engine.go.set()
    assert made.finish is None
    assert unpack_ids(made.token_ids) == IDS[:2] == tuple(first.ids)
    assert made.logprobs == pack_logprobs(LOGPROBS[:2])
    assert (made.weight_version, made.versions) == ("1", ())
    if has_control:
        assert engine.paused == ["/pause?mode=abort", "/update_weight_version", "/resume"]


async def test_an_answer_that_is_not_streamed_is_aborted_with_no_tokens():
    weights, engine = Weights("1"), Engine(is_stream=False)
    async with serve(engine) as server:
        first = Sampled(server, weights, is_stream=False)
        await engine.begun.wait()
        await weights.update("2", nothing, UpdateMode.ABORT)
        made = await first.task
        engine.go.set()
    assert (made.token_ids, made.finish, made.weight_version) == (b"", None, "1")


async def test_an_abort_does_not_wait_for_a_request_that_the_engine_holds_back():
    """A request that reaches vLLM after the pause is answered only after it goes on, which the update does last."""
    engine = Engine(is_stream=False)
    engine.holds = True
    async with serve(engine) as server:
        weights = Weights("1", [VllmControl("m", base_url=server.base_url)])
        first = Sampled(server, weights, is_stream=False)
        await engine.begun.wait()
        async with asyncio.timeout(60):
            await weights.update("2", nothing, UpdateMode.ABORT)
            made = await first.task
    assert (made.token_ids, made.finish, made.weight_version) == (b"", None, "1")
    assert engine.paused[-1] == "/resume"


@pytest.mark.parametrize("is_whole", [True, False])
async def test_keep_says_which_weights_sampled_which_tokens(is_whole):
    """Rules out that tokens of several versions are all said to be of the newest one, and that the versions follow
    from when the ids arrived, since a gateway may hold them back. If the end of the stream is lost, no version is
    known."""
    engine = Engine(version="0.33.0", is_whole=is_whole)
    async with serve(engine) as server:
        weights = Weights("1", [VllmControl("m", base_url=server.base_url)])
        first = Sampled(server, weights)
        await first.first.wait()
        await weights.update("2", nothing, "keep")
        made = await first.task
    if is_whole:
        assert unpack_ids(made.token_ids) == IDS
        assert made.finish is FinishReason.STOP
        assert made.versions == ((1, "1"), (3, "2"))
        assert made.weight_version == "2"
    else:
        assert unpack_ids(made.token_ids) == IDS[:2]
        assert (made.finish, made.versions, made.weight_version) == (None, (), None)
    assert engine.paused == ["/pause?mode=keep", "/update_weight_version", "/resume"]


@pytest.mark.parametrize("is_stream", [True, False])
async def test_keep_waits_for_answers_whose_tokens_cannot_be_told_apart(is_stream):
    engine = Engine(is_stream=is_stream)
    async with serve(engine) as server:
        weights = Weights("1", [VllmControl("m", base_url=server.base_url)])
        first = Sampled(server, weights, is_stream=is_stream)
        await engine.begun.wait()
        update = asyncio.create_task(weights.update("2", nothing, "keep"))
        await settle()
        assert engine.paused == []
        engine.go.set()
        await update
        made = await first.task
    assert (made.weight_version, made.versions) == ("1", ())


@pytest.mark.parametrize("mode", UpdateMode)
async def test_weights_that_cannot_be_loaded_keep_their_version(mode):
    engine = Engine()
    engine.go.set()

    async def fail():
        raise RuntimeError("no such file")

    async with serve(engine) as server:
        weights = Weights("1", [VllmControl("m", base_url=server.base_url)])
        with pytest.raises(RuntimeError, match="no such file"):
            await weights.update("2", fail, mode)
        made = await Sampled(server, weights).task
    assert (weights.version, made.weight_version) == ("1", "1")
    assert engine.paused[-1] == "/resume"


async def test_a_chat_model_answers_again_after_an_abort():
    weights, engine, failures = Weights("1"), Engine(), []
    async with serve(engine) as server:
        made = RetryModel(OpenAIChatModel("m", base_url=server.base_url), min_delay_seconds=0)
        weights.attach(made)
        watch = Watch(on_failure=lambda error, attempt, delay: failures.append(error))
        task = asyncio.create_task(made.infer(REQUEST, watch))
        await engine.begun.wait()
        await weights.update("2", nothing, "abort")
        engine.go.set()
        completion = await task
    assert (completion.message.content, completion.weight_version) == ("Hi.", "2")
    assert len(failures) == 1
    assert isinstance(failures[0], ServerError)


async def test_a_cancelled_request_is_cancelled_and_not_aborted():
    weights, engine = Weights("1"), Engine()
    async with serve(engine) as server:
        first = Sampled(server, weights)
        await first.first.wait()
        first.task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first.task
        await weights.update("2", nothing)
        engine.go.set()
    assert weights.version == "2"


async def test_misuse_is_refused():
    with pytest.raises(ConfigError, match="'sometimes'"):
        await Weights().update("2", nothing, "sometimes")
    with pytest.raises(ConfigError, match="give controls"):
        await Weights().update("2", nothing, "keep")
    with pytest.raises(ConfigError, match="not a model behind one server"):
        Weights().attach(ScriptedModel([]))


async def test_the_control_of_sglang():
    async with serve(lambda request: Reply({"success": True})) as server:
        control = SglangControl("m", base_url=server.base_url)
        weights = Weights("1", [control])
        for mode in UpdateMode:
            await weights.update("7", lambda: control.load("/w/7", "7"), mode)
        asked = [(item.path, item.json()) for item in server.requests]
    update = [
        ("/update_weights_from_disk", {"model_path": "/w/7", "weight_version": "7"}),
        ("/update_weight_version", {"new_version": "7", "abort_all_requests": False}),
        ("/continue_generation", {}),
    ]
    assert asked == [
        *update,
        ("/pause_generation", {"mode": "abort"}),
        *update,
        ("/pause_generation", {"mode": "in_place"}),
        *update,
    ]


async def test_an_engine_that_cannot_pause_is_an_error_and_nothing_waits_for_ever():
    async with serve(lambda request: Reply({"detail": "Not Found"}, 404)) as server:
        weights = Weights("1", [VllmControl("m", base_url=server.base_url)])
        with pytest.raises(Exception, match="404"):
            await weights.update("2", nothing, "abort")
        async with asyncio.timeout(30), weights.sampling() as sampling:
            assert sampling.version == "1"


async def test_vllm_loads_weights_and_forgets_the_prompts_of_the_old_ones():
    async with serve(lambda request: Reply({"results": [None]})) as server:
        control = VllmControl("m", base_url=server.base_url)
        await control.load("/w/7")
        asked = [(request.path, request.json()) for request in server.requests]
    assert asked == [
        ("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": "/w/7"}}),
        ("/reset_prefix_cache", {}),
    ]
