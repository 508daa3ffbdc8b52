"""The values that the loop handles: messages, tool calls and results, tools, usage, completions.

Values are frozen; they carry no storage ids and no clocks.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct, field

from treadle.core.log import Log

Json: TypeAlias = Any
"""A JSON value as `msgspec.json` decodes it. The type of what a provider sends and we do not model."""


class Role(StrEnum):
    """Who speaks in a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Effect(StrEnum):
    """What running a tool call again would do."""

    PURE = "pure"
    """It changes nothing: run it as often as you like."""
    IDEMPOTENT = "idempotent"
    """It changes something, and a second run leaves the same as one."""
    ONCE = "once"
    """A second run would do harm, so a call in doubt is never run again."""


class FinishReason(StrEnum):
    """Why one inference ended."""

    STOP = "stop"
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"
    CONTENT_FILTER = "content_filter"


class StopReason(StrEnum):
    """Why a turn, and with it a run, ended."""

    COMPLETED = "completed"
    """The model gave its answer."""
    MAX_STEPS = "max_steps"
    """`Policy.max_steps` was reached; the answer is the wrap-up, if there is one."""
    MAX_TOKENS = "max_tokens"
    """`Policy.max_tokens` was reached, or the answer was cut off by the model's own output limit."""
    MAX_COST = "max_cost"
    """`Policy.max_cost_usd` was reached."""
    MAX_TOOL_CALLS = "max_tool_calls"
    """`Policy.max_tool_calls` was reached."""
    DEADLINE = "deadline"
    """`Policy.deadline_seconds` passed."""
    CANCELLED = "cancelled"
    """The caller cancelled; the run can be resumed."""
    REFUSED = "refused"
    """The model, or its provider's filter, refused."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The messages no longer fit the model's context."""
    ERROR = "error"
    """Something failed for good; `fault` says whose it was."""


class Fault(StrEnum):
    """Whose fault a failure was. An infrastructure fault never counts as the model's."""

    MODEL = "model"
    TOOL = "tool"
    USER = "user"
    INFRASTRUCTURE = "infrastructure"


class ToolErrorKind(StrEnum):
    """Why a tool result is an error. Each is told to the model in words as well."""

    INVALID_JSON = "invalid_json"
    """The arguments are not JSON, or not an object."""
    TRUNCATED = "truncated"
    """The arguments were cut off by the model's output limit."""
    INVALID_ARGUMENTS = "invalid_arguments"
    """The arguments break the tool's JSON Schema."""
    UNKNOWN_TOOL = "unknown_tool"
    FAILED = "failed"
    """The tool raised, or reported an error of its own."""
    TIMEOUT = "timeout"
    TOO_LONG = "too_long"
    """The result was longer than anything that is kept; it was cut in the middle, and the rest is gone."""
    IN_DOUBT = "in_doubt"
    """The tool was started and its outcome was lost; it may or may not have taken effect."""
    NOT_RUN = "not_run"
    """The call was not run: a limit of the turn was reached, or the turn was ended."""
    OVER_LIMIT = "over_limit"
    """The call was not run: the tool may be called only so often."""
    REFUSED = "refused"
    """The call was not run: the policy or the user said no."""


class ToolCall(Struct, frozen=True, omit_defaults=True, gc=False):
    """A request of the model to run one tool."""

    call_id: str
    """Unique in the run; results are joined by it, never by position."""
    name: str
    arguments: str
    """The exact text that the model wrote, valid JSON or not."""
    opaque: dict[str, Json] | None = None
    """What the provider sent with the call and we do not model; sent back as it came. Keys as in a message's."""

    @property
    def parsed(self) -> Json:
        """The arguments decoded. An empty text is `{}`, as servers send for calls without arguments.

        Raises: `msgspec.DecodeError` if the text is not JSON.
        """
        return msgspec.json.decode(self.arguments) if self.arguments.strip() else {}


class Artifact(Struct, frozen=True, omit_defaults=True, gc=False):
    """Content that belongs to a tool result or to a message, kept by hash or, if it is small, inline."""

    kind: str
    """In a message: `text`, `image`, `audio` or `document`. In a tool result also `structured` (JSON that is too
    large for an event), `resource` or `link`; there `text` is the whole of a result that was cut."""
    digest: str | None = None
    """SHA-256 of the content, hex, under which the store keeps it; `None` for a link."""
    size_bytes: int | None = None
    mime_type: str | None = None
    uri: str | None = None
    name: str | None = None
    data: str | None = None
    """The content itself, base64. Set: the store does not keep it."""


class ToolResult(Struct, frozen=True, omit_defaults=True, gc=False):
    """The answer to one tool call, as the model sees it."""

    call_id: str
    name: str
    content: str
    is_error: bool = False
    error_kind: ToolErrorKind | None = None
    """Set exactly when `is_error`."""
    is_simulated: bool = False
    """Made up, by a mock or a model in the tool's place: nothing in the world was looked at or changed."""
    structured: Json = None
    """The same as JSON, in the tool's declared output schema, where the tool gives it."""
    artifacts: tuple[Artifact, ...] = ()
    """The first is the whole text, if `content` is cut."""


class ServerCall(Struct, frozen=True, omit_defaults=True, gc=False):
    """A tool call that the model's server made and answered itself, within one inference."""

    call_id: str
    name: str
    """As `web_search`, or the name of the tool of an MCP server."""
    arguments: str = ""
    """As JSON, where the server shows them."""
    result: str = ""
    """As text, or JSON; empty where the server does not show it."""
    is_error: bool = False


class Message(Struct, frozen=True, omit_defaults=True, gc=False):
    """One message of a transcript."""

    role: Role
    content: str = ""
    tool_calls: tuple[ToolCall, ...] = ()
    """Of an assistant; empty when it called nothing."""
    call_id: str | None = None
    """Of a tool message: the call it answers."""
    name: str | None = None
    """Of a tool message: the tool that answered."""
    is_error: bool = False
    """Of a tool message."""
    reasoning: str | None = None
    """Of an assistant: its thinking as text, where the server shows it."""
    opaque: dict[str, Json] | None = None
    """What the provider sent with the message and we do not model; sent back as it came. A key with the name of
    a dialect holds what only that dialect reads; the others are of `openai_chat`."""
    server_calls: tuple[ServerCall, ...] = ()
    """Of an assistant: what its server looked up on the way."""
    parts: tuple[Artifact, ...] = ()
    """Images, audio, documents and text files that belong to the message, after its text."""


class Usage(Struct, frozen=True, omit_defaults=True, gc=False):
    """Tokens of one inference, or a sum over several."""

    input_tokens: int = 0
    """Includes `cached_input_tokens` and `cache_write_tokens`."""
    output_tokens: int = 0
    """Includes `reasoning_tokens`."""
    cached_input_tokens: int = 0
    reasoning_tokens: int = 0
    cache_write_tokens: int = 0
    """Input that was written to a cache, where the server asks more for it."""

    @property
    def total_tokens(self) -> int:
        """Input and output together."""
        return self.input_tokens + self.output_tokens

    def __add__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
        )


class TokenRecord(Struct, frozen=True, omit_defaults=True, gc=False):
    """The exact tokens of one inference, where the engine returns them."""

    prompt_token_ids: tuple[int, ...] | None = None
    """Shape [P], less the first `prompt_shared_tokens`. `None`: the engine did not say."""
    prompt_shared_tokens: int = 0
    """How many leading prompt ids equal the run's previous prompt and output ids, and are not repeated."""
    token_ids: tuple[int, ...] | None = None
    """Shape [T], as sampled. `None`: the engine did not say."""
    logprobs: tuple[float, ...] | None = None
    """Shape [T], aligned with the sampled tokens, natural log. `None`: the engine did not say."""
    tokens: tuple[str, ...] | None = None
    """Shape [T], the tokens as text, where logprobs came without ids."""


class Settings(Struct, frozen=True, omit_defaults=True, gc=False):
    """Sampling settings. `None` leaves the choice to the server, and nothing is sent."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    seed: int | None = None
    stop: tuple[str, ...] | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None
    """Asks engines that can (vLLM, SGLang) for prompt and output token ids."""
    extra: dict[str, Json] | None = None
    """Further fields of the request body, sent as they are; they win over the fields above."""


class ToolSpec(Struct, frozen=True, omit_defaults=True, gc=False):
    """What a tool is, for the model and for the loop."""

    name: str
    description: str
    parameters: dict[str, Json]
    """The JSON Schema of the arguments, whole."""
    effect: Effect = Effect.ONCE
    timeout_seconds: float | None = None
    """`None`: no limit."""
    is_concurrent: bool = True
    """May run beside other calls of the same step."""
    max_result_chars: int = 100_000
    """A longer result is cut in the middle; the whole is kept as an artifact."""
    max_calls: int | None = None
    """In one turn; calls past it are not run, and the model is told. `None`: no limit."""
    max_concurrent: int | None = None
    """How many calls of one run may run at a time. `None`: as many as the policy lets."""
    output_schema: dict[str, Json] | None = None
    """The JSON Schema of `ToolResult.structured`, where the tool declares one."""
    may_differ: tuple[str, ...] = ()
    """What of a result may be otherwise when the call is made again: `timestamps`, `order`, or a regular
    expression, each of whose matches may differ."""


class OutputMode(StrEnum):
    """How a model is brought to answer in a schema. Its answer is checked in any case."""

    NATIVE = "native"
    """The server's own constrained decoding."""
    TOOL = "tool"
    """A tool, whose arguments are the answer; forced where there is no other."""
    TEXT = "text"
    """The instructions ask for it."""


class OutputSpec(Struct, frozen=True, omit_defaults=True, gc=False):
    """What the final answer of a turn must be."""

    schema: dict[str, Json]
    """The JSON Schema that the answer fits."""
    mode: OutputMode = OutputMode.NATIVE
    tool: str | None = None
    """Of the mode `tool`: the name of the tool."""


class Request(Struct, frozen=True, gc=False):
    """What one inference is asked."""

    messages: Log[Message]
    tools: tuple[ToolSpec, ...] = ()
    """Empty: the model may call nothing."""
    output_schema: dict[str, Json] | None = None
    """The JSON Schema that the final answer must fit, as JSON in its text."""
    required_tool: str | None = None
    """The tool that must be called; `None` leaves it to the model."""
    contents: Mapping[str, bytes] = {}
    """Content of the messages' parts that are not inline, by hash. A dialect looks up only what it has not encoded
    before, so this may be a mapping that reads from the store."""


class Completion(Struct, frozen=True, omit_defaults=True, gc=False):
    """What one inference answered."""

    message: Message
    """Role assistant."""
    finish_reason: FinishReason
    usage: Usage | None = None
    """`None`: the server did not say, which is not zero."""
    cost_usd: float | None = None
    """`None`: unknown, which is not zero."""
    model: str | None = None
    """The model that answered, as the server names it."""
    response_id: str | None = None
    settings: Settings | None = None
    """The sampling settings as sent."""
    tokens: TokenRecord | None = None
    opaque: dict[str, Json] | None = None
    """Fields of the response that we do not model."""
    is_cached: bool = False
    """From a cache: nothing was asked, and nothing spent."""
    contents: dict[str, bytes] | None = None
    """Content of the message's parts that are not inline, by hash. The driver moves it to the store, so that the
    journal never holds it here."""


class TaskRef(Struct, frozen=True, omit_defaults=True, gc=False):
    """Where a run's task came from."""

    task_set: str
    task_id: str
    seed: int | None = None


class Parent(Struct, frozen=True, gc=False):
    """The run and the event that a fork began from."""

    run_id: str
    seq: int


class FileDelta(Struct, frozen=True, omit_defaults=True, gc=False):
    """What changed in a sandbox's files since the snapshot before."""

    changed: dict[str, str] = field(default_factory=dict)
    """Path to content hash (SHA-256, hex)."""
    deleted: tuple[str, ...] = ()
    states: dict[str, str] = field(default_factory=dict)
    """Name of a tool's state that changed to content hash; these are no files."""
