"""Models of token ids in the loop: prompts that continue what was sampled, answers in pieces, streams."""

import pytest
from msgspec.structs import replace
from tests.models.tokens.scripted import ScriptedEngine
from tests.renderers.kinds import make

from treadle import Agent, tool
from treadle.core.errors import ConfigError, RequestError, ServerError, UnsupportedPartError
from treadle.core.events import (
    ContextCompacted,
    InferenceCompleted,
    ReasoningDelta,
    TextDelta,
    ToolCallDelta,
    ToolCompleted,
)
from treadle.core.log import Log
from treadle.core.parts import make_part
from treadle.core.policy import Policy
from treadle.core.tokens.packed import pack_ids, unpack_ids, unpack_logprobs
from treadle.core.tokens.token_record import Prior
from treadle.core.types import (
    UNREADABLE_CALL,
    FinishReason,
    Message,
    Request,
    Role,
    Settings,
    StopReason,
    ToolErrorKind,
)
from treadle.journal.memory import MemoryJournal
from treadle.models.protocol import Watch
from treadle.models.tokens.protocol import Generated
from treadle.models.tokens.token_model import TokenModel
from treadle.models.wrappers.retry import RetryModel

NAMES = ("chatml", "chatml?thinking=open", "chatml:PATH", "hf:qwen", "hf:prefilled", "family:qwen3")


@tool(effect="pure")
def add(a: int, b: int) -> str:
    """Add two numbers.

    Args:
        a: One.
        b: The other.
    """
    return str(a + b)


def call(a: int, b: int) -> str:
    return f'<tool_call>\n{{"name": "add", "arguments": {{"b": {b}, "a": {a}}}}}\n</tool_call>'


@pytest.fixture(params=NAMES)
def renderer(request):
    return make(request.param)


def thought(renderer) -> str:
    return "I add.\n</think>\n\n" if renderer.name.endswith("open") or "prefilled" in renderer.name else ""


async def run(renderer, answers, *, events=None, settings=None, policy=None, journal=None, **more):
    engine = ScriptedEngine(renderer, [])
    engine._answers = [answer(engine) if callable(answer) else answer for answer in answers]
    agent = Agent(
        TokenModel(engine, renderer, settings=settings),
        instructions="Be brief.",
        tools=[add],
        journal=journal or MemoryJournal(),
        policy=policy or Policy(),
    )
    return await agent.run("What is 1 + 2?", on_event=events, **more), engine, agent


def records(done):
    return [event.body.completion for event in done.events if isinstance(event.body, InferenceCompleted)]


async def test_each_prompt_continues_the_ids_of_before(renderer):
    """The ids of an answer stay in all later prompts, also where the tokenizer would make others of the text, where
    the arguments are in another order than the schema's, and where several results are one message.

    It rules out that an answer is encoded again from its text, that the token that ends a turn is doubled, and that
    turns before the last are lost.
    """
    begin = thought(renderer)
    answers = [f"{begin}{call(1, 2)}\n{call(3, 4)}", f"{begin}{call(5, 6)}", f"{begin}It is 3."]
    done, engine, _ = await run(renderer, answers)
    assert (done.output, done.stop_reason) == ("It is 3.", StopReason.COMPLETED)
    for number, (prompt, made) in enumerate(zip(engine.prompts, engine.returned, strict=True)):
        if number:
            before = (*engine.prompts[number - 1], *unpack_ids(engine.returned[number - 1].token_ids))
            assert prompt[: len(before)] == before
            assert prompt[len(before)] not in renderer.stop_token_ids
        record = records(done)[number].tokens
        assert unpack_ids(record.token_ids) == unpack_ids(made.token_ids)
        assert unpack_logprobs(record.logprobs) == unpack_logprobs(made.logprobs)
        assert record.tokenizer == renderer.fingerprint
    text = renderer.decode(engine.prompts[-1])
    assert text.count(call(1, 2)) == 1
    assert [text.count(f"<tool_response>\n{result}\n</tool_response>") for result in (3, 7, 11)] == [1, 1, 1]


async def test_a_second_turn_keeps_the_thinking_of_the_first():
    """A template that leaves out the thinking of earlier turns does not change what was sampled."""
    renderer = make("hf:qwen")
    engine = ScriptedEngine(renderer, ["<think>\nEasy.\n</think>\n\nIt is 3.", "Yes."])
    agent = Agent(TokenModel(engine, renderer), journal=MemoryJournal())
    async with agent.session() as session:
        await session.send("What is 1 + 2?")
        await session.send("Sure?")
    first, second = engine.prompts
    sampled = unpack_ids(engine.returned[0].token_ids)
    assert second[: len(first) + len(sampled)] == (*first, *sampled)
    assert renderer.decode(second).endswith(
        "It is 3.<|im_end|>\n<|im_start|>user\nSure?<|im_end|>\n<|im_start|>assistant\n"
    )


async def test_a_malformed_call_goes_back_to_the_model(renderer):
    """A call that cannot be read is a result with an error, and its ids stay."""
    begin = thought(renderer)
    bad = '<tool_call>\n{"name": "add", "arguments": {"a": 1,}}}\n</tool_call>'
    done, engine, _ = await run(renderer, [f"{begin}{bad}", f"{begin}It is 3."])
    assert done.output == "It is 3."
    (made,) = [item for item in done.messages if item.tool_calls]
    assert made.tool_calls[0].name in ("add", UNREADABLE_CALL)
    assert bad in made.tool_calls[0].arguments
    assert bad in renderer.decode(engine.prompts[1])


async def test_a_cut_off_answer_is_closed_once(renderer):
    """An answer that the limit cut off stays `length` although it has a call, and the next prompt ends it once.

    It rules out that the finish reason `length` is replaced by that of a parser.
    """
    begin = thought(renderer)
    text = f'{begin}<tool_call>\n{{"name": "add", "arguments": {{"a": 1'
    done, engine, _ = await run(
        renderer, [lambda made: made.sampled(text, finish=FinishReason.LENGTH), f"{begin}It is 3."]
    )
    first = records(done)[0]
    assert first.finish_reason is FinishReason.LENGTH
    (body,) = [event.body for event in done.events if isinstance(event.body, ToolCompleted)]
    assert body.result.error_kind is ToolErrorKind.TRUNCATED
    before = (*engine.prompts[0], *unpack_ids(engine.returned[0].token_ids))
    following = renderer.decode(engine.prompts[1][len(before) :])
    assert engine.prompts[1][: len(before)] == before
    assert following.startswith("<|im_end|>\n<|im_start|>user\n")


@pytest.mark.parametrize("name", ["chatml?thinking=open", "hf:prefilled"])
async def test_a_cut_off_thought_is_closed(name):
    renderer = make(name)
    request = Request(Log([Message(Role.USER, "Hi"), Message(Role.ASSISTANT), Message(Role.USER, "Go on")]))
    prompt = renderer.render([Message(Role.USER, "Hi")], ())
    ids = [*prompt, *renderer.encode("I wonder")]
    prior = Prior(pack_ids(ids), 2, renderer.fingerprint, is_cut=True)
    asked = replace(request, prior=prior)
    made = TokenModel(ScriptedEngine(renderer, []), renderer).render(asked)
    assert renderer.decode(made[len(ids) :]).startswith("\n</think>\n\n<|im_end|>\n<|im_start|>user\nGo on")


async def test_an_aborted_answer_goes_on_from_its_ids(renderer):
    """The pieces of an aborted answer are one completion, with the weights of each piece, and the limit counts them
    all."""
    begin = thought(renderer)
    pieces = [
        lambda made: made.sampled(f"{begin}It ", finish=None, weight_version="7"),
        lambda made: made.sampled("", finish=None, weight_version="7"),
        lambda made: made.sampled("is 3", finish=None, weight_version="8"),
        lambda made: made.sampled(".", renderer.stop_token_ids[:1], weight_version="8"),
    ]
    done, engine, _ = await run(renderer, pieces, settings=Settings(max_output_tokens=100))
    assert done.output == "It is 3."
    (completion,) = records(done)
    counts = [len(unpack_ids(item.token_ids)) for item in engine.returned]
    assert engine.prompts[3][: len(engine.prompts[2])] == engine.prompts[2]
    assert [len(prompt) - len(engine.prompts[0]) for prompt in engine.prompts] == [
        0,
        counts[0],
        counts[0],
        counts[0] + counts[2],
    ]
    assert [item.max_output_tokens for item in engine.settings] == [
        100,
        100 - counts[0],
        100 - counts[0],
        100 - counts[0] - counts[2],
    ]
    assert completion.settings.max_output_tokens == 100
    record = completion.tokens
    assert unpack_ids(record.token_ids) == sum([unpack_ids(item.token_ids) for item in engine.returned], ())
    assert record.versions == ((counts[0], "7"), (counts[2] + counts[3], "8"))
    assert completion.weight_version == "8"
    assert completion.usage.output_tokens == sum(counts)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_engine_that_is_paused_does_not_lose_what_it_sampled(is_streamed):
    """Rules out the defect that an error threw away the tokens that were sampled before it."""
    renderer = make("chatml")
    engine = ScriptedEngine(renderer, [])
    first = engine.sampled("One", finish=None)
    engine._answers = [first, ServerError("paused", status=503), ServerError("paused", status=503), " two."]
    told, heard = [], []
    watch = Watch(
        heard.append if is_streamed else None, lambda error, attempt, _: told.append((str(error), attempt))
    )
    model = RetryModel(TokenModel(engine, renderer), min_delay_seconds=0)
    completion = await model.infer(Request(Log([Message(Role.USER, "Go")])), watch)
    assert completion.message.content == "One two."
    assert told == [("paused", 1), ("paused", 2)]
    # What a failed attempt streamed no longer counts, so each attempt streams its whole answer.
    assert "".join([delta.text for delta in heard]).endswith("One two.") == is_streamed
    begin = unpack_ids(first.token_ids)
    assert unpack_ids(completion.tokens.token_ids)[: len(begin)] == begin
    assert engine.prompts[1:] == [engine.prompts[0] + begin] * 3


async def test_an_engine_that_dies_in_the_middle_is_given_up_like_any_other():
    """Attempts count anew if the engine went on with its answer in between."""
    renderer = make("chatml")
    engine = ScriptedEngine(renderer, [])
    dead = ServerError("dead", status=503)
    one, two = [engine.sampled(text, finish=None) for text in ("One", " two")]
    engine._answers = [one, dead, dead, two, *[dead] * 9]
    told = []
    watch = Watch(on_failure=lambda error, attempt, _: told.append(attempt))
    model = RetryModel(TokenModel(engine, renderer), max_attempts=3, min_delay_seconds=0)
    with pytest.raises(ServerError, match=r"dead \(gave up after 5 attempts\)"):
        await model.infer(Request(Log([Message(Role.USER, "Go")])), watch)
    assert told == [1, 2, 3, 4]


async def test_an_engine_that_samples_nothing_after_a_failure_is_given_up():
    """Rules out the defect that a piece without ids counted as progress, so that the attempts had no end."""
    renderer = make("chatml")
    engine = ScriptedEngine(renderer, [])
    dead = ServerError("dead", status=503)
    one, nothing = [engine.sampled(text, finish=None) for text in ("One", "")]
    engine._answers = [one, *[dead, nothing] * 9]
    model = RetryModel(TokenModel(engine, renderer), max_attempts=3, min_delay_seconds=0)
    with pytest.raises(ServerError, match=r"dead \(gave up after 3 attempts\)"):
        await model.infer(Request(Log([Message(Role.USER, "Go")])), Watch())


async def test_an_answer_does_not_begin_with_one_that_was_given_before():
    """Rules out the defect that a second answer for the same watch had the ids of the first one, too."""
    renderer = make("chatml")
    engine = ScriptedEngine(renderer, [])
    one = engine.sampled("One", finish=None)
    engine._answers = [one, ServerError("paused", status=503), " two.", "Three."]
    model, watch = RetryModel(TokenModel(engine, renderer), min_delay_seconds=0), Watch()
    for said in ("One two.", "Three."):
        completion = await model.infer(Request(Log([Message(Role.USER, "Go")])), watch)
        assert completion.message.content == said
    assert engine.prompts[-1] == engine.prompts[0]


async def test_the_seed_depends_on_the_place_of_the_conversation():
    """An engine draws the same numbers for the same seed and prompt."""
    renderer = make("chatml")
    engine = ScriptedEngine(renderer, ["one"] * 4)
    model = TokenModel(engine, renderer, settings=Settings(seed=7))
    for place in ("", "1.0", "1.1", "1.0"):
        await model.infer(Request(Log([Message(Role.USER, "Go")]), place=place), Watch())
    first, one, other, again = [item.seed for item in engine.settings]
    assert (first, one) == (7, again)
    assert len({first, one, other}) == 3


async def test_an_engine_that_refuses_at_once_is_an_error():
    renderer = make("chatml")
    engine = ScriptedEngine(renderer, [ServerError("paused", status=503)])
    with pytest.raises(ServerError, match="paused"):
        await TokenModel(engine, renderer).infer(Request(Log([Message(Role.USER, "Go")])), Watch())
    engine = ScriptedEngine(renderer, [])
    engine._answers = [engine.sampled("One", finish=None), RequestError("no such model", status=404)]
    with pytest.raises(RequestError, match="no such model"):
        await TokenModel(engine, renderer).infer(Request(Log([Message(Role.USER, "Go")])), Watch())


async def test_a_limit_ends_an_aborted_answer():
    renderer = make("chatml")
    done, engine, _ = await run(
        renderer, [lambda made: made.sampled("abcd", finish=None)], settings=Settings(max_output_tokens=4)
    )
    assert len(engine.prompts) == 1
    assert records(done)[0].finish_reason is FinishReason.LENGTH


async def test_an_engine_that_only_aborts_fails(monkeypatch):
    monkeypatch.setattr("treadle.models.tokens.token_model._IDLE_SECONDS", 0)
    renderer = make("chatml")
    engine = ScriptedEngine(renderer, [Generated(token_ids=b"", finish=None)] * 30)
    with pytest.raises(ServerError, match="aborted an answer 20 times in a row"):
        await TokenModel(engine, renderer).infer(Request(Log([Message(Role.USER, "Hi")])), Watch())


async def test_a_stream_has_the_same_pieces(renderer):
    begin = thought(renderer)
    heard = []
    answers = [f"{begin}Grüße 👋 {call(1, 2)}", f"{begin}It is 3."]
    done, _, _ = await run(renderer, answers, events=heard.append)
    text = "".join([item.text for item in heard if isinstance(item, TextDelta)])
    assert text == "Grüße 👋It is 3." or text == "Grüße 👋 It is 3."
    assert [item.name for item in heard if isinstance(item, ToolCallDelta)] == ["add"]
    said = "".join([item.text for item in heard if isinstance(item, ReasoningDelta)])
    assert ("I add." in said) == bool(begin)
    assert done.output == "It is 3."


async def test_a_stop_text_ends_the_content_and_not_the_ids():
    renderer = make("chatml")
    heard = []
    settings = Settings(stop=("STOP",))
    done, engine, _ = await run(
        renderer, [lambda made: made.sampled("It is 3. STOP")], events=heard.append, settings=settings
    )
    assert done.output.strip() == "It is 3."
    assert "".join([item.text for item in heard if isinstance(item, TextDelta)]).strip() == "It is 3."
    assert renderer.decode(unpack_ids(records(done)[0].tokens.token_ids)) == "It is 3. STOP"
    assert engine.settings[0].stop == ("STOP",)


async def test_a_wrap_up_continues_the_ids(renderer):
    begin = thought(renderer)
    done, engine, _ = await run(
        renderer, [f"{begin}{call(1, 2)}", f"{begin}It is 3."], policy=Policy(max_steps=1)
    )
    assert (done.output, done.stop_reason) == ("It is 3.", StopReason.MAX_STEPS)
    before = (*engine.prompts[0], *unpack_ids(engine.returned[0].token_ids))
    assert engine.prompts[1][: len(before)] == before


async def test_ids_of_another_renderer_are_not_continued():
    ours, other = make("chatml"), make("chatml?thinking=open")
    message = Message(Role.USER, "Hi")
    prior = Prior(pack_ids([1, 2, 3]), 1, other.fingerprint)
    made = TokenModel(ScriptedEngine(ours, []), ours).render(Request(Log([message]), prior=prior))
    assert made == ours.render([message], ())


async def test_tokens_are_counted_exactly(renderer):
    done, engine, agent = await run(renderer, [f"{thought(renderer)}It is 3."])
    model = agent.model
    request = Request(
        Log([Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "What is 1 + 2?")]), (add.spec,)
    )
    assert model.count_tokens(request) == len(engine.prompts[0]) == records(done)[0].usage.input_tokens


async def test_images_are_refused_and_text_files_are_not():
    renderer = make("chatml")
    model = TokenModel(ScriptedEngine(renderer, ["Fine."]), renderer)
    image, _ = make_part(b"\x89PNG\r\n\x1a\n", "image/png", name="cat.png")
    with pytest.raises(UnsupportedPartError, match=r"scripted cannot be sent .*cat\.png"):
        model.render(Request(Log([Message(Role.USER, "Look", parts=(image,))])))
    text, _ = make_part(b"a,b\n1,2", "text/csv", name="table.csv")
    ids = model.render(Request(Log([Message(Role.USER, "Look", parts=(text,))])))
    assert "1,2" in renderer.decode(ids)


def test_no_decoding_within_a_schema():
    with pytest.raises(ConfigError, match="does not decode within a schema"):
        TokenModel(ScriptedEngine(make("chatml"), []), make("chatml"), output_mode="native")


async def test_a_resumed_session_and_a_fork_continue_the_ids():
    """The ids of before come from the journal, so another process continues them too."""
    renderer, journal = make("chatml:PATH"), MemoryJournal()
    engines = [ScriptedEngine(renderer, [text]) for text in ("It is 3.", "Yes.", "No.")]
    agents = [Agent(TokenModel(engine, renderer), journal=journal) for engine in engines]
    async with agents[0].session(run_id="one") as session:
        await session.send("What is 1 + 2?")
        seq = session.run.events[-1].seq
    async with agents[1].session(run_id="one") as session:
        await session.send("Sure?")
    await agents[2].fork("one", seq, text="Really?")
    before = (*engines[0].prompts[0], *unpack_ids(engines[0].returned[0].token_ids))
    for engine, asked in zip(engines[1:], ("Sure?", "Really?"), strict=True):
        (prompt,) = engine.prompts
        assert prompt[: len(before)] == before
        assert asked in renderer.decode(prompt[len(before) :])


async def test_after_a_compaction_the_prompt_is_rendered_and_then_continued():
    renderer = make("chatml")
    engine = ScriptedEngine(renderer, [f"Answer {number}. {'word ' * 40}" for number in range(6)])
    model = TokenModel(engine, renderer, context_tokens=1200, settings=Settings(max_output_tokens=300))
    agent = Agent(model, journal=MemoryJournal(), policy=Policy(keep_turns=1))
    async with agent.session() as session:
        for number in range(4):
            await session.send(f"Question {number}? {'text ' * 30}")
        events = session.run.events
    assert any(isinstance(event.body, ContextCompacted) for event in events)
    kinds = []
    for number in range(1, len(engine.prompts)):
        before = (*engine.prompts[number - 1], *unpack_ids(engine.returned[number - 1].token_ids))
        kinds.append(engine.prompts[number][: len(before)] == before)
    # The request for the summary and the first prompt after it begin anew; the others continue.
    assert kinds.count(False) >= 2
    assert kinds[0] is True


async def test_an_id_that_only_the_model_has_ends_no_run(renderer):
    """Rules out that a run fails because its model sampled a padding of its vocabulary."""
    padding = 1_000_000

    def answer(engine):
        end = renderer.stop_token_ids[:1]
        ids = [*renderer.encode(f"{thought(renderer)}Grü"), padding, *renderer.encode("ße"), *end]
        return Generated(token_ids=pack_ids(ids), logprobs=None, finish=FinishReason.STOP)

    done, _, _ = await run(renderer, [answer])
    assert (done.stop_reason, done.error) == (StopReason.COMPLETED, None)
    assert done.output.replace("\ufffd", "") == "Grüße"
    (completion,) = records(done)
    assert padding in unpack_ids(completion.tokens.token_ids)
