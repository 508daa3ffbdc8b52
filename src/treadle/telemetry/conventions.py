"""The names and forms of OpenTelemetry's semantic conventions for generative AI.

Source: OpenTelemetry semantic conventions 1.41.
"""

from collections.abc import Iterable
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec

from treadle.core import events as e
from treadle.core.spec import PartSpec
from treadle.core.types import Completion, Json, Message, Role, Usage

_PROVIDERS = {
    "gemini": "gcp.gemini",
    "mistral": "mistral_ai",
    "openai_responses": "openai",
    "completions": "openai",
    "xai": "x_ai",
}
"""The names that the conventions have for providers, where they differ from Treadle's."""
OTHER = "_OTHER"
"""The value for a provider or an error that has no name in the conventions."""
SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""The buckets of durations."""
TOKENS = tuple([4**power for power in range(14)])
"""The buckets of counts of tokens."""
_FINISH_REASONS = {"tool_calls": "tool_call"}
"""The finish reasons of messages in the conventions, where they differ from Treadle's."""

Attributes: TypeAlias = dict[str, Any]
"""The attributes of a span or a measurement. The API has no name for their values."""


def provider_of(model: str) -> str:
    """Return the name of a model's provider as the conventions have it."""
    provider, colon, _ = model.partition(":")
    return _PROVIDERS.get(provider, provider) if colon else OTHER


def bare_name(model: str) -> str:
    """Return the name of a model without its provider."""
    return model.partition(":")[2] or model


def server_of(model: str, part: PartSpec | None) -> Attributes:
    """Return the host and the port of a model's server, as far as they are known.

    `part` is the model of the run's agent, whose settings may name another server than the provider's own.
    """
    from treadle.models.config.bare import given_url, home_of
    from treadle.models.config.presets import find_preset

    settings = part.settings if part is not None and part.name == model else None
    url = (settings or {}).get("base_url")
    if not isinstance(url, str):
        preset = find_preset(model.partition(":")[0]) if ":" in model else None
        url = "" if preset is None else given_url(preset, None) or home_of(preset)
    try:
        found = urlsplit(url)
        port = found.port or {"https": 443, "http": 80}.get(found.scheme)
    except ValueError:
        return {}
    return {"server.address": found.hostname, "server.port": port} if found.hostname and port else {}


def agent_name(started: e.RunStarted) -> str | None:
    """Return the name of the agent's persona; `None` if it has none."""
    context = started.spec.context
    name = None if context is None or context.persona is None else context.persona.get("name")
    return None if name is None else str(name)


def usage_attributes(usage: Usage) -> Attributes:
    """Return the attributes of token counts."""
    found: Attributes = {
        "gen_ai.usage.input_tokens": usage.input_tokens,
        "gen_ai.usage.output_tokens": usage.output_tokens,
        "gen_ai.usage.cache_read.input_tokens": usage.cached_input_tokens,
    }
    if usage.cache_write_tokens:
        found["gen_ai.usage.cache_creation.input_tokens"] = usage.cache_write_tokens
    if usage.reasoning_tokens:
        found["gen_ai.usage.reasoning.output_tokens"] = usage.reasoning_tokens
    return found


def completion_attributes(completion: Completion) -> Attributes:
    """Return the attributes of an answer, without its content."""
    settings = completion.settings
    found: Attributes = {
        "gen_ai.response.finish_reasons": [completion.finish_reason.value],
        "gen_ai.response.model": completion.model,
        "gen_ai.response.id": completion.response_id,
        "treadle.cost_usd": completion.cost_usd,
        "treadle.is_cached": True if completion.is_cached else None,
    }
    if settings is not None:
        found |= {
            "gen_ai.request.temperature": settings.temperature,
            "gen_ai.request.top_p": settings.top_p,
            "gen_ai.request.max_tokens": settings.max_output_tokens,
            "gen_ai.request.seed": settings.seed,
            "gen_ai.request.stop_sequences": settings.stop,
        }
    if completion.usage.is_reported:
        found |= usage_attributes(completion.usage)
    return {name: value for name, value in found.items() if value is not None}


def write_messages(messages: Iterable[Message], finish_reason: str | None = None) -> str:
    """Return messages as JSON, in the form that the conventions have for them."""
    found: list[Json] = []
    for message in messages:
        parts: list[Json] = []
        if message.reasoning:
            parts.append({"type": "reasoning", "content": message.reasoning})
        if message.role is Role.TOOL:
            parts.append({"type": "tool_call_response", "id": message.call_id, "response": message.content})
        elif message.content:
            parts.append({"type": "text", "content": message.content})
        for call in message.tool_calls:
            given = {"id": call.call_id, "name": call.name, "arguments": call.arguments}
            parts.append({"type": "tool_call", **given})
        item: dict[str, Json] = {"role": message.role.value, "parts": parts}
        if finish_reason is not None:
            item["finish_reason"] = _FINISH_REASONS.get(finish_reason, finish_reason)
        found.append(item)
    return msgspec.json.encode(found).decode()
