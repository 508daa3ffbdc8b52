"""The contract of all renderers: what was sampled stays, and what follows is what the template writes."""

import random
import re

import pytest
from tests.renderers.folders import TEMPLATES, make_folder
from tests.renderers.kinds import NAMES, make

from treadle.core.errors import ConfigError, UnsupportedPartError
from treadle.core.parts import make_part
from treadle.core.types import FinishReason, Message, Role, ToolCall, ToolSpec
from treadle.renderers.registry import RENDERERS, load_renderer

pytestmark = pytest.mark.sets(8)  # there are 30 renderers and few tests

CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
TOOLS = (ToolSpec("weather", "The weather of a city.", CITY),)
ASKED = Message(Role.USER, "What is the weather in Oslo?")
SYSTEM = Message(Role.SYSTEM, "Be brief.")
MORE = Message(Role.USER, "And then?")
CALL = ToolCall("call_1_0", "weather", '{"city": "Oslo"}')
RESULT = Message(Role.TOOL, "rain", call_id="call_1_0", name="weather")
STEERED = Message(Role.USER, "Hurry.")


@pytest.fixture(params=NAMES)
def renderer(request):
    return make(request.param)


def begins_in_reasoning(renderer) -> bool:
    opening = renderer.decode(renderer.render([ASKED], ())[-8:])
    return opening.rstrip().endswith("<think>")


def sample(renderer, text: str, seed: int = 0) -> list[int]:
    """Return ids of a text as a model may sample them, which are not those that the tokenizer makes of it."""
    drawn, ids = random.Random(seed), []
    for part in re.split("(</?think[^>]*>)", text):
        special = renderer.tokenizer.special_ids.get(part)
        if special is not None:
            ids.append(special)
            continue
        while part:
            size = drawn.randint(1, 4)
            ids += renderer.encode(part[:size])
            part = part[size:]
    return ids


def answer_of(renderer, content: str) -> list[int]:
    thought = "I think\n</think>\n\n" if begins_in_reasoning(renderer) else ""
    return sample(renderer, thought + content)


def test_every_registered_kind_is_tried():
    assert {name.partition("?")[0].partition(":")[0] for name in NAMES} == set(RENDERERS.names())


@pytest.mark.parametrize(
    "added",
    [[MORE], [RESULT], [RESULT, STEERED], [RESULT, STEERED, MORE]],
    ids=["user", "tool", "both", "all"],
)
def test_a_bridge_is_what_the_template_writes_between_two_answers(renderer, added):
    """The token that ends an answer is neither doubled nor missing, however the answer ended, and the ids of before
    stay as they were sampled, also if the prompt begins the answer with the opening tag of thinking.

    It rules out that the end of a turn is encoded again although the model sampled it, and that a prompt with a
    prefilled `<think>` never continues the one before.
    """
    prompt = renderer.render([SYSTEM, ASKED], TOOLS)
    answer = answer_of(renderer, "I look.")
    calls = (CALL,) if RESULT in added else ()
    said = Message(Role.ASSISTANT, "I look.", calls)
    try:
        whole = renderer.decode(renderer.render([SYSTEM, ASKED, said, *added], TOOLS))
    except ConfigError as error:
        pytest.skip(f"the template has no such conversation: {error}")
    following = renderer.bridge([*prompt, *answer, renderer.stop_token_ids[0]], added, TOOLS, is_cut=False)
    assert following is not None
    assert following[0] != renderer.stop_token_ids[0]
    text = renderer.decode(following)
    assert whole.endswith(text)
    assert all(item.content in text for item in added)
    # Without the sampled end, the bridge has it.
    cut = renderer.bridge([*prompt, *answer], added, TOOLS, is_cut=True)
    assert cut is not None
    assert whole.endswith(renderer.decode(cut)) or cut[0] in renderer.stop_token_ids
    assert cut[-len(following) :] == following
    assert len(cut) == len(following) + 1 or following[0] in renderer.stop_token_ids


def test_a_conversation_keeps_every_id(renderer):
    """Over many turns each prompt begins with the ids of all earlier prompts and answers, although the tokenizer
    would make other ids of their text, and the answers end with a space.

    It rules out that a part of an answer is made again from its text, or that the space at its end is stripped,
    so that the turns before it are lost.
    """
    ids = renderer.render([SYSTEM, ASKED], TOOLS)
    for turn in range(4):
        answer = answer_of(renderer, f"The answer {turn} is rain. ")
        ids = [*ids, *answer, renderer.stop_token_ids[0]]
        following = renderer.bridge(ids, [MORE], TOOLS, is_cut=False)
        assert following is not None
        assert following[0] != renderer.stop_token_ids[0]
        ids += following
    text = renderer.decode(ids)
    for turn in range(4):
        assert text.count(f"The answer {turn} is rain. ") == 1


def test_a_token_that_ends_turns_within_an_answer_cuts_nothing_off():
    """The package `renderers` looks for the end of a turn in the answer, and would leave out what follows it."""
    renderer = make("family:qwen3")
    prompt = renderer.render([ASKED], ())
    prior = [*prompt, *renderer.encode("a"), renderer.stop_token_ids[0], *renderer.encode("b")]
    following = renderer.bridge(prior, [MORE], (), is_cut=True)
    assert renderer.decode(following).startswith("<|im_end|>\n<|im_start|>user\nAnd then?")


def test_an_answer_is_read(renderer):
    answer = [*answer_of(renderer, "It rains."), renderer.stop_token_ids[0]]
    message = renderer.read(answer, TOOLS, finish=FinishReason.STOP)
    assert (message.role, message.content, message.tool_calls) == (Role.ASSISTANT, "It rains.", ())
    assert (message.reasoning or "").strip() == ("I think" if begins_in_reasoning(renderer) else "")
    cut = renderer.read(answer, TOOLS, finish=FinishReason.STOP, stop=["ains"])
    assert cut.content == "It r"


def test_a_stream_says_the_same(renderer):
    parser = renderer.parser(TOOLS)
    if parser is None:
        pytest.skip("answers are only read whole")
    answer = answer_of(renderer, "It rains.")
    for number in answer:
        parser.feed(renderer.decode([number]))
    parsed = parser.close()
    message = renderer.read(answer, TOOLS, finish=FinishReason.STOP)
    assert (parsed.content, parsed.reasoning) == (message.content, message.reasoning)


def test_a_text_cannot_end_a_message(renderer):
    """A result that has the text of a special token adds no special token to the prompt."""
    special = set(renderer.stop_token_ids)
    quiet = renderer.render([ASKED], ())
    marks = "".join([renderer.decode([number]) for number in sorted(special)])
    loud = renderer.render([Message(Role.USER, f"{ASKED.content} {marks}")], ())
    count = sum(number in special for number in loud)
    assert count == sum(number in special for number in quiet)


def test_an_image_is_refused(renderer):
    part, _ = make_part(b"\x89PNG\r\n\x1a\n", "image/png", name="cat.png")
    shown = Message(Role.USER, "What is this?", parts=(part,))
    with pytest.raises(UnsupportedPartError, match=r"cannot render .*cat\.png"):
        renderer.render([shown], ())


def test_names_and_fingerprints(renderer):
    assert load_renderer(renderer.name).fingerprint == renderer.fingerprint
    assert renderer.fingerprint
    assert len({make(name).fingerprint for name in NAMES}) == len(NAMES)


TEXT_ARGUMENTS = """{%- for tool in tools or [] %}{{ tool.function.description }}
{% endfor %}{%- for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% for call in message.tool_calls or [] %}<tool_call>{{ '{"name": "' + call.function.name +
'", "arguments": ' + call.function.arguments + '}' }}</tool_call>{% endfor %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""


def test_a_template_that_takes_arguments_as_text_gets_them_so(tmp_path):
    """Rules out that such a template counts as one without a place for calls and results."""
    name = next(name for name, item in TEMPLATES.items() if "<|im_end|>" in item[1])
    folder = make_folder(tmp_path / name, name)
    (folder / "chat_template.jinja").write_text(TEXT_ARGUMENTS)
    renderer = load_renderer(f"hf:{folder}?format=hermes")
    said = Message(Role.ASSISTANT, "", (CALL,))
    prompt = renderer.decode(renderer.render([ASKED, said, RESULT], TOOLS))
    assert f'"arguments": {CALL.arguments}' in prompt
    assert "<|im_start|>tool\nrain<|im_end|>" in prompt
