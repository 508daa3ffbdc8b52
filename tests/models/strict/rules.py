"""What APIs refuse beyond the types of their fields, each in the words of its own server.

Source: the vendors' documentation and errors that their users reported, up to 2026.
"""

import json
import re
from itertools import pairwise
from typing import Any

from tests.models.strict import vendor_types as types

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_THOUGHTS = ("reasoning_content",)
"""The field of messages that is no part of OpenAI's API, and that servers of open models take."""


def need(condition: object, why: str) -> None:
    if not condition:
        raise ValueError(why)


def check_calls(messages: list[Any], *, id_chars: int) -> None:
    """Check that the results of each chat message follow its calls, before anything else."""
    waiting: set[str] = set()
    for index, message in enumerate(messages):
        where = f"messages.[{index}]"
        if message["role"] == "tool":
            need(waiting, f"{where}.role: messages with role 'tool' must follow 'tool_calls'")
            need(message["tool_call_id"] in waiting, f"{where}: tool_call_id not found in 'tool_calls'")
            waiting.remove(message["tool_call_id"])
            continue
        need(not waiting, f"an assistant message with 'tool_calls' must be followed by results of {waiting}")
        calls = message.get("tool_calls")
        need(calls is None or calls, f"{where}.tool_calls: empty array")
        for call in calls or ():
            need(len(call["id"]) <= id_chars, f"{where}: id too long")
            need(_NAME.fullmatch(call["function"]["name"]), f"{where}: string does not match pattern")
            need(isinstance(json.loads(call["function"]["arguments"]), dict), f"{where}: arguments")
            waiting.add(call["id"])
        content = message.get("content")
        need(content is not None or calls, f"{where}.content: null")
        need(content != [], f"{where}.content: empty array")
        for part in content if isinstance(content, list) else ():
            need(part.get("type") != "text" or part["text"], f"{where}: empty text part")
    need(not waiting, "an assistant message with 'tool_calls' must be followed by tool messages")


def check_chat(body: Any) -> None:
    """Check a request as every server of chat completions does."""
    messages = body["messages"]
    need(messages, "messages: empty array")
    check_calls(messages, id_chars=40)
    need(body.get("tools") != [], "tools: empty array")
    names = [item["function"]["name"] for item in body.get("tools", ())]
    need(len(set(names)) == len(names), "tool names must be unique")
    choice = body.get("tool_choice")
    need(choice is None or names, "'tool_choice' is only allowed when 'tools' are specified")
    need(not isinstance(choice, dict) or choice["function"]["name"] in names, "tool_choice: no such tool")
    need("stream_options" not in body or body.get("stream"), "stream_options without stream")
    need(messages[-1]["role"] != "assistant", "the last message must not be the assistant's")


def check_openai(body: Any) -> None:
    """Check a request to OpenAI's own server."""
    types.check_openai_chat(body)
    check_chat(body)
    need("max_tokens" not in body, "Unsupported parameter: 'max_tokens' is not supported with this model.")
    format_ = body.get("response_format")
    if format_ is not None and format_["json_schema"]["strict"]:
        schema = format_["json_schema"]["schema"]
        need(schema.get("additionalProperties") is False, "Invalid schema for response_format 'answer'")


def check_hosted(body: Any, *, more: tuple[str, ...] = _THOUGHTS) -> None:
    """Check a request to a provider of open models, whose messages may have the fields `more`."""
    known = [
        {name: value for name, value in message.items() if name not in more} for message in body["messages"]
    ]
    types.check_openai_chat({**body, "messages": known})
    check_chat(body)


def check_openrouter(body: Any) -> None:
    check_hosted(body, more=(*_THOUGHTS, "reasoning_details"))


def check_engine(body: Any) -> None:
    """Check a request to an engine, which ignores fields of messages that it does not know."""
    known = ("reasoning_details",)
    check_hosted(body, more=(*_THOUGHTS, *known))


def check_llama_cpp(body: Any) -> None:
    check_engine(body)
    need(isinstance(body.get("tool_choice", ""), str), "Invalid tool_choice type: 'object'")


def check_groq(body: Any) -> None:
    """Check a request to Groq, which refuses every field of a message that it does not know."""
    types.check_openai_chat(body)
    check_chat(body)


def check_deepseek(body: Any) -> None:
    """Check a request to DeepSeek, whose models think by default."""
    check_hosted(body)
    need(
        body.get("tool_choice", "auto") in ("auto", "none"), "Thinking mode does not support this tool_choice"
    )
    need("response_format" not in body, "This response_format type is unavailable now")
    for message in body["messages"]:
        has_thoughts = message["role"] != "assistant" or "reasoning_content" in message
        need(has_thoughts, "The `reasoning_content` in the thinking mode must be passed back to the API.")


def check_mistral(body: Any) -> None:
    types.check_mistral(body)
    check_chat(body)
    messages = body["messages"]
    for before, after in pairwise(messages):
        is_wrong = (before["role"], after["role"]) == ("tool", "user")
        need(not is_wrong, "Unexpected role 'user' after role 'tool'")
        need(after["role"] != "system" or before["role"] == "system", "Unexpected role 'system'")


def check_responses(body: Any) -> None:
    """Check a request to the Responses API, whose server keeps nothing."""
    types.check_openai_responses(body)
    need(body.get("tools") != [], "tools: empty array")
    called: set[str] = set()
    answered: set[str] = set()
    items = body["input"]
    need(items, "input: empty array")
    for index, item in enumerate(items):
        kind = item.get("type", "message")
        if kind == "function_call":
            need(re.fullmatch(r"[a-zA-Z0-9_-]{1,64}", item["call_id"]), "call_id: string too long")
            need(item["call_id"] not in called, "duplicate call_id")
            called.add(item["call_id"])
        elif kind == "function_call_output":
            told = item["call_id"]
            need(told in called, f"No tool call found for function call output with call_id {told}.")
            answered.add(told)
        elif kind == "reasoning":
            is_kept = item.get("encrypted_content") or item.get("content")
            need(body.get("store") is not False or is_kept, f"Item with id {item['id']!r} not found.")
            following = items[index + 1] if index + 1 < len(items) else {}
            is_own = following.get("role") == "assistant" or following.get("type", "message") != "message"
            need(
                is_own and following.get("type") != "function_call_output",
                "Item of type 'reasoning' was provided without its required following item.",
            )
        elif kind == "message":
            need(item["content"] != [], f"input[{index}].content: empty array")
    need(called == answered, f"No tool output found for function call {called - answered}.")
    if (choice := body.get("tool_choice")) is not None and isinstance(choice, dict):
        names = [tool["name"] for tool in body.get("tools", ()) if tool["type"] == "function"]
        need(choice["name"] in names, "Tool choice 'function' not found in 'tools' parameter.")


def check_stored_responses(body: Any) -> None:
    """Check a request to the Responses API, whose server has kept the items up to a response."""
    need(body.get("store") is not False, "the response is not kept")
    if "previous_response_id" not in body:
        check_responses(body)
        return
    types.check_openai_responses(body)
    need(body["input"], "input: empty array")
    kinds = {item.get("type", "message") for item in body["input"]}
    need(kinds <= {"message", "function_call_output"}, "items that the server has already")


def check_anthropic(body: Any) -> None:
    types.check_anthropic(body)
    waiting: list[str] = []
    roles = []
    for index, message in enumerate(body["messages"]):
        role, content = message["role"], message["content"]
        roles.append(role)
        need(content, f"messages.{index}: content must be non-empty")
        results = [block["tool_use_id"] for block in content if block["type"] == "tool_result"]
        if waiting:
            need(role == "user", "`tool_use` ids were found without `tool_result` blocks immediately after")
            need(sorted(results) == sorted(waiting), "each `tool_use` block must have a `tool_result` block")
            first = [block["type"] for block in content[: len(results)]]
            need(set(first) == {"tool_result"}, "tool_result blocks must come first")
        else:
            need(not results, "unexpected `tool_use_id` found in `tool_result` blocks")
        waiting = [block["id"] for block in content if block["type"] == "tool_use"]
        need(len(set(waiting)) == len(waiting), "`tool_use` ids must be unique")
        for block in content:
            _check_block(block, role)
        if role == "assistant":
            last = content[-1]["type"]
            need(last not in ("thinking", "redacted_thinking"), "the final block cannot be `thinking`")
    need(not waiting, "`tool_use` ids were found without `tool_result` blocks")
    need(roles[0] == "user", "messages: first message must use the user role")
    need(roles[-1] == "user", "This model does not support assistant message prefill.")
    for block in body.get("system", ()):
        need(block["text"].strip(), "system: text content blocks must be non-empty")
    text = json.dumps(body)
    need(text.count('"cache_control"') <= 4, "A maximum of 4 blocks with cache_control may be provided.")
    need('"tool_use"' not in text or body.get("tools"), "Requests which include `tool_use` must define tools")
    choice = body.get("tool_choice", {})
    names = [tool.get("name") for tool in body.get("tools", ())]
    need(not choice or names, "tool_choice may only be specified while providing tools")
    need(choice.get("type") != "tool" or choice["name"] in names, "Tool not found in provided tools")
    is_forced = choice.get("type") in ("tool", "any")
    is_thinking = body.get("thinking", {}).get("type") in ("enabled", "adaptive")
    need(not (is_forced and is_thinking), "Thinking may not be enabled when tool_choice forces tool use.")


def _check_block(block: Any, role: str) -> None:
    kind = block["type"]
    if kind == "text":
        need(block["text"].strip(), "messages: text content blocks must contain non-whitespace text")
    elif kind == "tool_use":
        need(role == "assistant", "tool_use blocks can only be in assistant messages")
        need(re.fullmatch(r"[a-zA-Z0-9_-]+", block["id"]), "tool_use.id: String should match pattern")
        need(
            re.fullmatch(r"[a-zA-Z0-9_-]{1,128}", block["name"]), "tool_use.name: String should match pattern"
        )
    elif kind == "tool_result":
        for part in block.get("content", ()) if isinstance(block.get("content"), list) else ():
            _check_block(part, "user")
    elif kind == "thinking":
        need(role == "assistant" and block["signature"], "Invalid `signature` in `thinking` block")


_DATA = ("text", "inlineData", "functionCall", "functionResponse", "fileData", "executableCode")


def check_gemini(body: Any, *, is_strict: bool = False) -> None:
    """Check a request to the Gemini API. If `is_strict`, the model is one that signs its calls."""
    types.check_gemini(body)
    contents = body["contents"]
    need(contents, "GenerateContentRequest.contents: contents is not specified")
    need(contents[0]["role"] == "user", "Please ensure that the first turn is the user's")
    before: Any = {"role": None, "parts": []}
    for index, content in enumerate(contents):
        parts = content["parts"]
        need(parts, f"GenerateContentRequest.contents[{index}].parts: contents.parts must not be empty.")
        for part in parts:
            data = [name for name in _DATA if name in part]
            need(len(data) == 1, f"contents[{index}].parts: required oneof field 'data' must have one value")
            need(part.get("text", "x"), "Unable to submit request because it must have a text parameter")
        calls = [part for part in parts if "functionCall" in part]
        results = [part["functionResponse"] for part in parts if "functionResponse" in part]
        asked = [part["functionCall"] for part in before["parts"] if "functionCall" in part]
        need(
            len(results) == len(asked),
            "Please ensure that the number of function response parts is equal to the number of function call "
            "parts of the function call turn.",
        )
        need([item["name"] for item in results] == [item["name"] for item in asked], "names do not match")
        need([item.get("id") for item in results] == [item.get("id") for item in asked], "ids do not match")
        if calls:
            need(content["role"] == "model", "function calls are the model's")
            need(
                before["role"] == "user",
                "Please ensure that function call turn comes immediately after a user turn or after a function "
                "response turn.",
            )
            need(
                not is_strict or "thoughtSignature" in calls[0],
                "Function call is missing a thought_signature in functionCall parts.",
            )
        before = content
    need(not any("functionCall" in part for part in before["parts"]), "a call without its response")
    need(contents[-1]["role"] == "user", "Please ensure that single turn requests end with a user role")
    for part in body.get("systemInstruction", {}).get("parts", ()):
        need(part["text"], "systemInstruction: empty text parameter")
    has_tools = bool(body.get("tools"))
    need(
        "toolConfig" not in body or has_tools, "Function calling config is set without function_declarations."
    )
    generation = body.get("generationConfig", {})
    is_json = generation.get("responseMimeType") == "application/json"
    need(
        not (is_json and has_tools) or is_strict,
        "Function calling with a response mime type: 'application/json' is unsupported",
    )


def check_gemini_3(body: Any) -> None:
    check_gemini(body, is_strict=True)


def check_ollama(body: Any) -> None:
    """Check a request to Ollama, whose server decodes messages and arguments into types of its own."""
    types.check_ollama(body)
    for message in body["messages"]:
        need(isinstance(message["content"], str), "json: cannot unmarshal into Go struct field .content")
        for call in message.get("tool_calls", ()):
            need(isinstance(call["function"]["arguments"], dict), "json: cannot unmarshal string .arguments")
        if message["role"] == "tool":
            need(message["tool_name"], "a result without the name of its tool")


def check_prompt(body: Any) -> None:
    types.check_completions(body)
    need(isinstance(body["prompt"], str) and body["prompt"], "prompt: empty")
