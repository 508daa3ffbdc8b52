"""The types of the vendors' own packages, against which whole requests are checked, unknown fields included."""

from collections.abc import Iterator
from functools import cache
from typing import Any

from pydantic import BaseModel, TypeAdapter

_adapter = cache(TypeAdapter)


def check_type(kind: Any, value: Any) -> None:
    """Check that `value` has the type `kind` and no field that the type does not have.

    The types of OpenAI and Anthropic are typed dictionaries, which allow further fields, and their lists are only
    checked when they are read. Raises: `ValueError`.
    """
    made = _adapter(kind).validate_python(value)
    if unknown := sorted(_find_unknown(value, made, "")):
        raise ValueError(f"Unknown parameter: {', '.join(unknown)}")


def _find_unknown(given: Any, made: Any, path: str) -> Iterator[str]:
    if isinstance(made, BaseModel):
        made = {
            name: getattr(made, key)
            for key, field in type(made).model_fields.items()
            for name in (key, field.alias)
            if name in (given if isinstance(given, dict) else ())
        }
    if isinstance(given, dict) and isinstance(made, dict):
        for name, value in given.items():
            if name not in made:
                yield f"{path}.{name}"
            else:
                yield from _find_unknown(value, made[name], f"{path}.{name}")
    elif isinstance(given, list) and not isinstance(made, str | bytes | dict):
        for index, (value, other) in enumerate(zip(given, list(made), strict=True)):
            yield from _find_unknown(value, other, f"{path}[{index}]")


def _check_params(params: Any, kind: str, body: Any) -> None:
    form = "Streaming" if body.get("stream") else "NonStreaming"
    check_type(getattr(params, f"{kind}CreateParams{form}"), body)


def check_openai_chat(body: Any) -> None:
    from openai.types.chat import completion_create_params as params

    _check_params(params, "Completion", body)


def check_openai_responses(body: Any) -> None:
    from openai.types.responses import response_create_params as params

    _check_params(params, "Response", body)


def check_completions(body: Any) -> None:
    from openai.types import completion_create_params as params

    _check_params(params, "Completion", body)


def check_anthropic(body: Any) -> None:
    from anthropic.types import message_create_params as params

    # Older models take them, and the package has them no more.
    sampling = ("temperature", "top_p", "top_k")
    _check_params(params, "Message", {name: value for name, value in body.items() if name not in sampling})


def check_gemini(body: Any) -> None:
    from google.genai import types

    known = {
        "contents": list[types.Content],
        "tools": list[types.Tool],
        "systemInstruction": types.Content,
        "generationConfig": types.GenerationConfig,
        "toolConfig": types.ToolConfig,
    }
    if unknown := sorted(body.keys() - known.keys()):
        raise ValueError(f"Unknown name {unknown}: Cannot find field.")
    for name, value in body.items():
        check_type(known[name], value)


def check_ollama(body: Any) -> None:
    from ollama._types import ChatRequest

    # The package's type of a schema has few of the fields that the server takes.
    tools = [
        {"type": tool["type"], "function": {"name": tool["function"]["name"]}}
        for tool in body.get("tools", ())
    ]
    check_type(ChatRequest, {**body, "tools": tools})


def check_mistral(body: Any) -> None:
    from mistral_common.protocol.instruct.request import ChatCompletionRequest
    from mistral_common.protocol.instruct.validator import MistralRequestValidatorV13, ValidationMode

    more = ("stream", "stop")
    kept = {name: value for name, value in body.items() if name not in more}
    kept["messages"] = [_with_joined_thoughts(message) for message in kept["messages"]]
    request = ChatCompletionRequest.model_validate(kept)
    validator: Any = MistralRequestValidatorV13(mode=ValidationMode.serving)
    validator.validate_request(request)


def _with_joined_thoughts(message: Any) -> Any:
    """Return a message with its thoughts as texts, as the package has them; the API has lists of texts."""
    content = message.get("content")
    if not isinstance(content, list):
        return message
    return {
        **message,
        "content": [
            {**part, "thinking": "".join(piece["text"] for piece in part["thinking"])}
            if part["type"] == "thinking"
            else part
            for part in content
        ],
    }
