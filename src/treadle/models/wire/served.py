"""A request that a server got, in Treadle's types, whatever the wire format that it came in.

The serving half of each dialect (`served.py`) reads it. `settings_for` says what the model that answers is sent of
it: its dialect may be another one.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Mapping
from mimetypes import guess_type
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import msgspec
from msgspec import Struct, field

from treadle.core.errors import ConfigError
from treadle.core.parts import make_part
from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import Artifact, Json, Message, Role
from treadle.models.wire.fitting import without_bounds

Settings: TypeAlias = dict[str, Json]
NONE, AUTO, REQUIRED = "none", "auto", "required"
"""The choices of calls that are no names of tools."""
_EFFORT, _VERBOSITY = "reasoning_effort", "verbosity"
"""The fields of chat completions that say how much the model is to think, and to write."""
_LEVELS = {_EFFORT: "effort", _VERBOSITY: "verbosity"}
"""These fields, with what people call them."""
_CONFIG = "output_config"
"""The field of Anthropic's API with the effort, and the form of the answer."""
_HARMLESS = frozenset(
    ("user", "store", "metadata", "service_tier", "safety_identifier", "prompt_cache_key", "stream_options")
)
"""Fields of requests that do not change an answer."""


class ServedRequest(Struct, kw_only=True):
    """A request for the next message of a conversation."""

    model: str
    dialect: str
    """The dialect of the request."""
    instructions: str | None
    """The texts of the system messages; `None` if there are none."""
    messages: list[Message]
    """The conversation, without system messages."""
    blobs: dict[str, bytes]
    """The contents of the messages' parts, as far as they are not inline."""
    tools: tuple[dict[str, Json], ...] = ()
    """The tools of the client, as functions of OpenAI's flat form."""
    tool_choice: str = AUTO
    """`auto`, `none`, `required`, or the name of the tool that must be called."""
    allows_all: bool = True
    """False if `tool_choice` allows some tools only; the others are not among `tools`."""
    is_parallel: bool | None = None
    """Whether an answer may have several calls; `None`: as the model's server likes."""
    form: dict[str, Json] | None = None
    """The form that the answer must have, as `response_format` of chat completions; `None`: any text."""
    form_field: str = "response_format"
    """The field of `extra` that says only this form, and perhaps the effort."""
    settings: Settings = field(default_factory=dict)
    """Fields of `Settings` that the client has set."""
    extra: Settings = field(default_factory=dict)
    """All other fields of the request, under their names in its dialect."""
    is_stream: bool = False
    has_usage: bool = True
    """True if a stream ends with the token counts."""
    labels: dict[str, str] = field(default_factory=dict)
    """What the client wants to keep with the run."""
    previous: str | None = None
    """The id of the answer that the request continues; `None` if the conversation comes with it."""
    echo: dict[str, Json] = field(default_factory=dict)
    """The fields that the answer repeats."""

    @property
    def text_tools(self) -> frozenset[str]:
        """The names of the tools whose calls are texts."""
        return frozenset([str(tool["name"]) for tool in self.tools if tool.get("takes_text")])

    def _level(self, name: str) -> Json:
        """Return the level that the request asks for in this field of chat completions; `None`: it does not."""
        config = self.extra.get(_CONFIG) if name == _EFFORT else None
        return self.extra.get(name) or (config.get("effort") if isinstance(config, dict) else None)

    def settings_for(self, dialect: str | None, *, is_agent: bool = False) -> Settings:
        """Return the options of a model of this dialect (`None`: of no server) for the request.

        An agent has tools of its own, and is given the form of its answers as a schema.

        Raises: `ConfigError` that names a field which such a model cannot be sent.
        """
        extra: dict[str, Any] = {
            name: it for name, it in self.extra.items() if not (is_agent and name == self.form_field)
        }
        if dialect not in (self.dialect, None):
            for name in extra:
                if name not in _HARMLESS and name != self.form_field and name not in _LEVELS:
                    raise self._refuse(name, dialect)
            extra = {}
            if self.form is not None and not is_agent:
                demanded = _demand(str(dialect), self.form)
                if demanded is None:
                    raise self._refuse(f"this {self.form_field}", dialect)
                extra = demanded
        for name, word in _LEVELS.items():
            # Without the form of an agent, the effort that stood beside it is said again.
            is_said = dialect in (self.dialect, None) and extra.keys() & {name, _CONFIG}
            if (level := self._level(name)) is None or is_said:
                continue
            asked = _ask_level(dialect or self.dialect, name, str(level))
            if asked is None:
                raise self._refuse(f"the {word} {level!r:.100}", dialect)
            for key, value in asked.items():
                extra[key] = {**extra[key], **value} if isinstance(extra.get(key), dict) else value
        if (self.tools or is_agent) and (self.tool_choice != AUTO or self.is_parallel is not None):
            fields = _choose(dialect or self.dialect, self.tool_choice, self.is_parallel)
            if fields is None:
                raise self._refuse(
                    "parallel_tool_calls" if self.tool_choice == AUTO else "tool_choice", dialect
                )
            extra |= fields
        settings = {**self.settings, **({"extra": extra} if extra else {})}
        are_strict = self.tools and all([tool.get("strict") is True for tool in self.tools])
        if dialect == "openai_chat" and are_strict:
            settings["strict_tools"] = True
        return settings

    def _refuse(self, what: str, dialect: str | None) -> ConfigError:
        return ConfigError(
            f"{what} cannot be sent to {self.model!r}, whose server speaks {dialect}: leave it out"
        )


def _ask_level(dialect: str, name: str, level: str) -> dict[str, Any] | None:
    """Return the fields that say how much a model thinks or writes, where `name` is the field of chat completions;
    `None` if not all models of a dialect have such levels."""
    if name == _VERBOSITY:
        fields: dict[str, dict[str, Any]] = {
            "openai_chat": {_VERBOSITY: level},
            "openai_responses": {"text": {"verbosity": level}},
        }
    else:
        fields = {
            "openai_chat": {_EFFORT: "high" if level in ("xhigh", "max") else level},
            "openai_responses": {"reasoning": {"effort": "xhigh" if level == "max" else level}},
            "anthropic": {_CONFIG: {"effort": "low" if level in ("none", "minimal") else level}},
        }
    return fields.get(dialect)


def _choose(dialect: str, choice: str, is_parallel: bool | None) -> Settings | None:
    """Return the fields that say which calls an answer may have; `None` if a dialect has none."""
    if dialect == "anthropic":
        kinds = {AUTO: {"type": "auto"}, REQUIRED: {"type": "any"}, NONE: {"type": "none"}}
        named = kinds.get(choice, {"type": "tool", "name": choice})
        more = {"disable_parallel_tool_use": True} if is_parallel is False and choice != NONE else {}
        return {"tool_choice": {**named, **more}}
    if dialect == "gemini" and is_parallel is None:
        modes: dict[str, Json] = {AUTO: {"mode": "AUTO"}, REQUIRED: {"mode": "ANY"}, NONE: {"mode": "NONE"}}
        calling = modes.get(choice, {"mode": "ANY", "allowedFunctionNames": [choice]})
        return {"toolConfig": {"functionCallingConfig": calling}}
    if dialect not in ("openai_chat", "openai_responses"):
        return None
    function: Json = {"name": choice} if dialect == "openai_responses" else {"function": {"name": choice}}
    is_kind = choice in (AUTO, REQUIRED, NONE)
    fields = {"tool_choice": choice if is_kind else {"type": "function", **function}}
    return fields if is_parallel is None else {**fields, "parallel_tool_calls": is_parallel}


def _demand(dialect: str, form: dict[str, Json]) -> Settings | None:
    """Return the fields that demand a form of an answer; `None` if a dialect has none. Raises: `ConfigError`."""
    schema, named = read_form(form), form.get("json_schema")
    if schema is None or dialect == "openai_chat":
        return {} if schema is None else {"response_format": form}
    if not isinstance(named, dict):
        # Any object is demanded, which has no schema.
        generation: Settings = {"responseMimeType": "application/json"}
        objects: dict[str, Settings] = {
            "openai_responses": {"text": {"format": {"type": "json_object"}}},
            "gemini": {"generationConfig": generation},
            "ollama": {"format": "json"},
        }
        return objects.get(dialect)
    told = {name: named[name] for name in ("description", "strict") if named.get(name) is not None}
    flat = {"type": "json_schema", "name": named.get("name") or "answer", "schema": schema, **told}
    schemas: dict[str, Settings] = {
        "openai_responses": {"text": {"format": flat}},
        "anthropic": {_CONFIG: {"format": {"type": "json_schema", "schema": without_bounds(schema)}}},
        "gemini": {
            "generationConfig": {"responseMimeType": "application/json", "responseJsonSchema": schema}
        },
        "ollama": {"format": schema},
    }
    return schemas.get(dialect)


def read_form(form: Json) -> dict[str, Json] | None:
    """Return the JSON Schema that `response_format` of chat completions means; `None`: any text.

    Raises: `ConfigError`.
    """
    fields = form if isinstance(form, dict) else {}
    if fields.get("type") in ("text", "json_object"):
        return None if fields["type"] == "text" else {"type": "object"}
    wanted = fields.get("json_schema")
    schema = wanted.get("schema") if isinstance(wanted, dict) else None
    if not isinstance(schema, dict):
        raise ConfigError("response_format has no schema; give it as response_format.json_schema.schema")
    return schema


class _TextArguments(Struct):
    input: str


_decode_text = msgspec.json.Decoder(_TextArguments).decode


def make_text_tool(tool: Mapping[str, Json]) -> dict[str, Json]:
    """Return a tool whose calls are texts as a definition that has one argument.

    A format that the texts must have is told to the model, because few servers can constrain it.
    """
    form, about = tool.get("format"), str(tool.get("description") or "")
    if isinstance(form, dict):
        form = form.get("grammar", form)  # chat completions have it one level deeper
    if isinstance(form, dict) and (grammar := form.get("definition")):
        about = f"{about}\n\nThe input must fit this grammar ({form.get('syntax')}):\n{grammar}".strip()
    parameters = {"type": "object", "properties": {"input": {"type": "string"}}, "required": ["input"]}
    return {"name": tool.get("name"), "description": about, "parameters": parameters, "takes_text": True}


def choose_allowed(
    tools: Iterable[dict[str, Any]], allowed: Iterable[dict[str, Any]], mode: Json, where: str
) -> tuple[str, list[dict[str, Any]]]:
    """Return the choice and the tools that a `tool_choice` of the type `allowed_tools` leaves.

    `where` is the name of the field with the mode and the tools. Raises: `ConfigError` if it allows another tool,
    or has another mode than `auto` and `required`.
    """
    if mode not in (AUTO, REQUIRED):
        raise ConfigError(f"{where}.mode is {mode!r:.100}; give 'auto' or 'required'")
    given, kept = {_key_of(tool): tool for tool in tools}, {}
    for item in allowed:
        if (key := _key_of(item)) not in given:
            raise ConfigError(f"tool_choice allows {item!r:.100}, which is none of the tools")
        kept[key] = given[key]
    return str(mode), list(kept.values())


def _key_of(tool: Mapping[str, Any]) -> tuple[str, str]:
    """Return what identifies a tool in `tool_choice`."""
    name = tool.get("server_label" if tool.get("type") == "mcp" else "name")
    return str(tool.get("type")), str(name)


def text_of_call(arguments: str) -> str:
    """Return the text of a call of a tool that takes one."""
    try:
        return _decode_text(arguments).input
    except UNREADABLE:
        return arguments  # the model wrote something else


def arguments_of_text(text: str) -> str:
    """Return the arguments of a call of a tool that takes a text."""
    return msgspec.json.encode(_TextArguments(text)).decode()


_decode_fields = msgspec.json.Decoder(dict[str, Any]).decode


def read_fields(body: bytes) -> dict[str, Any]:
    """Return the fields of a request. Raises: `ConfigError` if the body is no JSON object."""
    try:
        fields = _decode_fields(body)
        if b"\\u" in body:
            msgspec.json.encode(fields)  # fails for half of a surrogate pair
    except UnicodeEncodeError:
        raise ConfigError("the request has half of a surrogate pair, which is no character") from None
    except UNREADABLE as error:
        raise ConfigError(f"the body is not a JSON object: {error}") from None
    return fields


def read_url(url: Json, blobs: dict[str, bytes], name: str | None = None, kind: str = "image") -> Artifact:
    """Return the part that a URL stands for: its content, which goes to `blobs`, or a link for the model's server.

    Raises: `ConfigError`.
    """
    if str(url).startswith(("https://", "http://")):
        mime_type, _ = guess_type(urlsplit(str(url)).path)
        return Artifact(kind, mime_type=mime_type, uri=str(url), name=name)
    head, comma, data = str(url).partition(",")
    if not (head.startswith("data:") and head.endswith(";base64") and comma):
        raise ConfigError(
            "give the image or file as a data URL, such as 'data:image/png;base64,...', or by its https address"
        )
    try:
        content = base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ConfigError(f"the data URL is not base64 ({error})") from None
    part, contents = make_part(content, head.removeprefix("data:").removesuffix(";base64"), name=name)
    blobs |= contents
    return part


def read_each(given: Json, read: Callable[[Any], Iterable[Message]]) -> list[Message]:
    """Return the messages that `read` makes of each item. Raises: `ConfigError` that names the unreadable one."""
    if not isinstance(given, list) or not given:
        raise ConfigError("messages is missing or empty; give a list of messages")
    messages: list[Message] = []
    for number, item in enumerate(given):
        try:
            messages += read(item)
        except (ConfigError, KeyError, TypeError, AttributeError, msgspec.MsgspecError) as error:
            what = f"{error} is missing" if isinstance(error, KeyError) else error
            raise ConfigError(f"messages[{number}] cannot be read: {what}") from None
    return messages


def join_words(messages: list[Message]) -> Message:
    """Return one message of the user for several."""
    if len(messages) == 1:
        return messages[0]
    texts = [message.content for message in messages if message.content]
    parts = tuple([part for message in messages for part in message.parts])
    return Message(Role.USER, "\n\n".join(texts), parts=parts)


def join_answers(messages: Iterable[Message]) -> list[Message]:
    """Return messages in which those of the model that follow each other are one."""
    found: list[Message] = []
    for message in messages:
        last = found[-1] if found else None
        if last is None or not last.role is message.role is Role.ASSISTANT:
            found.append(message)
            continue
        text = "\n".join([part for part in (last.content, message.content) if part])
        calls = (*last.tool_calls, *message.tool_calls)
        found[-1] = Message(Role.ASSISTANT, text, calls, reasoning=message.reasoning or last.reasoning)
    return found
