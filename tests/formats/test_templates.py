"""Rendering and parsing compared with the models' own templates, where a package contains them."""

import json
from pathlib import Path

import pytest

from treadle.core.types import Message, Role, ToolCall, ToolSpec
from treadle.formats import parse, render, render_result, render_tools

pytestmark = pytest.mark.xdist_group("mistral")
ARGUMENTS = {"word": 'ü "[TOOL_CALLS]" \n', "n": [1, 1.5, {"a": None}], "b": True}
CALLS = (
    ToolCall("abcdefgh1", "look_up", json.dumps(ARGUMENTS, ensure_ascii=False)),
    ToolCall("abcdefgh2", "f", "{}"),
)
TOOL = {"name": "look_up", "description": "Looks up.", "parameters": {"type": "object", "properties": {}}}
MESSAGE = Message(Role.ASSISTANT, "I look.", CALLS)


@pytest.fixture(scope="module")
def vocabulary():
    """The vocabulary that comes with the package, short: the templates need only their marks."""
    mistral_common = pytest.importorskip("mistral_common")
    raw = json.loads((Path(mistral_common.__file__).parent / "data" / "tekken_240911.json").read_text())
    marks = raw["config"]["default_num_special_tokens"]
    raw["vocab"] = raw["vocab"][:1000]
    raw["config"]["default_vocab_size"] = marks + len(raw["vocab"])
    return raw


@pytest.fixture(params=["v3", "v7", "v11", "v13"])
def mistral(request, tmp_path, vocabulary):
    """Return the text of a conversation as one version's template writes it."""
    from mistral_common.protocol.instruct.messages import AssistantMessage, ToolMessage, UserMessage
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.protocol.instruct.tool_calls import Function, FunctionCall, Tool
    from mistral_common.protocol.instruct.tool_calls import ToolCall as MistralCall
    from mistral_common.tokens.tokenizers.base import SpecialTokenPolicy
    from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    raw = {**vocabulary, "config": dict(vocabulary["config"])}
    if request.param != "v3":
        # The vocabulary is of v3.
        marks = [dict(item) for item in Tekkenizer.DEPRECATED_SPECIAL_TOKENS]
        known = {item["token_str"] for item in marks}
        for mark in ("[ARGS]", "[CALL_ID]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]"):
            if mark not in known:
                marks.append({"rank": len(marks), "token_str": mark, "is_control": True})
        raw["config"]["version"], raw["special_tokens"] = request.param, marks
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps(raw))
    calls = [
        MistralCall(id=call.call_id, function=FunctionCall(name=call.name, arguments=call.arguments))
        for call in CALLS
    ]
    # Templates up to v3 cannot have text beside calls.
    content = None if request.param == "v3" else MESSAGE.content
    messages = [
        UserMessage(content="Hi"),
        AssistantMessage(content=content, tool_calls=calls),
        *[
            ToolMessage(content=f"found {call.call_id}", tool_call_id=call.call_id, name=call.name)
            for call in CALLS
        ],
    ]
    asked = ChatCompletionRequest(messages=messages, tools=[Tool(function=Function(**TOOL))])
    tokenizer = MistralTokenizer.from_file(str(path))
    tokens = tokenizer.encode_chat_completion(asked).tokens
    return request.param, tokenizer.decode(tokens, special_token_policy=SpecialTokenPolicy.KEEP)


def test_mistrals_own_text_is_read(mistral):
    version, text = mistral
    said = text.partition("[/INST]")[2].partition("</s>")[0]
    parsed = parse(said, "mistral")
    assert parsed.errors == ()
    assert [(call.name, call.arguments) for call in parsed.tool_calls] == [("look_up", ARGUMENTS), ("f", {})]
    assert parsed.content == ("" if version == "v3" else "I look.")
    ids = [call.call_id for call in parsed.tool_calls]
    assert ids == ([None, None] if version == "v13" else ["abcdefgh1", "abcdefgh2"])


def test_mistrals_text_is_written_as_its_template_writes_it(mistral):
    version, text = mistral
    if version != "v13":
        pytest.skip("the newest way is written")
    said, _, results = text.partition("[/INST]")[2].partition("</s>")
    assert said == render(MESSAGE, "mistral")
    assert results == "".join(render_result(f"found {call.call_id}", call.name, "mistral") for call in CALLS)
    assert render_tools([ToolSpec(**TOOL)], "mistral") in text
