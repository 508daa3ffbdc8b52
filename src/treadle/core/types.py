"""The values that the loop handles: messages, tool calls and results, tools, usage, completions.

Values are frozen; they carry no storage ids and no clocks.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct, field

from treadle.core.log import Log
from treadle.core.texts.json_text import decode_json
from treadle.core.tokens.logprobs_mode import LogprobsMode, has_policy_logprobs
from treadle.core.tokens.token_record import Prior, TokenRecord

Json: TypeAlias = Any
"""A JSON value as `msgspec.json` decodes it. It is the type of provider data that Treadle has no type for."""


class Role(StrEnum):
    """The author of a message."""

    SYSTEM = "system"
    USER = "user"
    ASSISTANT = "assistant"
    TOOL = "tool"


class Effect(StrEnum):
    """The effect of running a tool call again."""

    PURE = "pure"
    """The call changes nothing, so it may run any number of times."""
    IDEMPOTENT = "idempotent"
    """The call changes something, and two runs have the same effect as one."""
    ONCE = "once"
    """A second run could do harm, so a call whose outcome was lost is never run again."""


class FinishReason(StrEnum):
    """The reason why one inference ended."""

    STOP = "stop"
    """The model finished its answer."""
    TOOL_CALLS = "tool_calls"
    """The model asked for tool calls."""
    LENGTH = "length"
    """The output limit cut the answer off."""
    CONTENT_FILTER = "content_filter"
    """The model, or its provider's filter, refused to answer."""


class StopReason(StrEnum):
    """The reason why a turn ended, and also why the run ended, if the run is not a session."""

    COMPLETED = "completed"
    """The model gave its final answer."""
    MAX_STEPS = "max_steps"
    """`Policy.max_steps` was reached. The output is the answer that the model gave as its wrap-up, if any."""
    MAX_TOKENS = "max_tokens"
    """`Policy.max_tokens` was reached, or the model's own output limit cut the answer off."""
    MAX_COST = "max_cost"
    """`Policy.max_cost_usd` was reached."""
    MAX_TOOL_CALLS = "max_tool_calls"
    """`Policy.max_tool_calls` was reached."""
    DEADLINE = "deadline"
    """`Policy.deadline_seconds` passed."""
    CANCELLED = "cancelled"
    """The caller cancelled; the run can be resumed."""
    REFUSED = "refused"
    """The model, or its provider's filter, refused to answer."""
    CONTEXT_OVERFLOW = "context_overflow"
    """The messages no longer fit into the model's context."""
    ERROR = "error"
    """Something failed, and retries did not help; the event's `fault` says who is responsible."""


class Fault(StrEnum):
    """The party responsible for a failure. An infrastructure fault never counts as the model's."""

    MODEL = "model"
    """The model, such as an answer that was cut off or refused."""
    TOOL = "tool"
    """A tool, such as a tool that raised an exception."""
    USER = "user"
    """The caller or the configuration, such as a wrong API key, or a run that was cancelled."""
    INFRASTRUCTURE = "infrastructure"
    """The network, a server or this machine."""


class ToolErrorKind(StrEnum):
    """The kind of error that a tool result reports. The result's text tells the model the same in words."""

    INVALID_JSON = "invalid_json"
    """The arguments are not JSON, or not an object."""
    TRUNCATED = "truncated"
    """The arguments were cut off by the model's output limit."""
    INVALID_ARGUMENTS = "invalid_arguments"
    """The arguments do not fit the tool's JSON Schema."""
    UNKNOWN_TOOL = "unknown_tool"
    """There is no tool with this name."""
    FAILED = "failed"
    """The tool raised an exception or reported an error."""
    RETRY = "retry"
    """The tool asked for another call, as the result says."""
    TIMEOUT = "timeout"
    """The tool did not finish in time and was stopped."""
    TOO_LONG = "too_long"
    """The result was too long even for an artifact. It was cut in the middle, and the rest is lost."""
    IN_DOUBT = "in_doubt"
    """The call has no result of its tool: the outcome was lost, or what runs the tool cannot be reached."""
    NOT_RUN = "not_run"
    """The call was not run, or a pure one not to its end, because of a limit or the end of the turn."""
    OVER_LIMIT = "over_limit"
    """The call was not run because the tool was called, or asked for another call, too often in the turn."""
    REFUSED = "refused"
    """The call was not run because the policy or the user refused it."""


_MODEL_FAULTS = frozenset(
    (
        ToolErrorKind.INVALID_JSON,
        ToolErrorKind.TRUNCATED,
        ToolErrorKind.INVALID_ARGUMENTS,
        ToolErrorKind.UNKNOWN_TOOL,
    )
)

UNREADABLE_CALL = "unreadable_call"
"""The name of a call whose own name cannot be read. Its arguments are the text that the model wrote. If the
server said what is wrong with the call, `ToolCall.opaque` has this text under the same name."""


class ToolCall(Struct, frozen=True, omit_defaults=True, gc=False):
    """A model's request to run one tool."""

    call_id: str
    """The call's id, unique in the run. A result belongs to the call with the same id, whatever its position."""
    name: str
    """The name of the tool."""
    arguments: str
    """The exact text that the model wrote, whether it is valid JSON or not."""
    opaque: dict[str, Json] | None = None
    """What the provider sent with the call and Treadle has no field for, to be sent back; see `Message.opaque`."""

    @property
    def parsed(self) -> Json:
        """The decoded arguments. An empty text counts as `{}`, because some servers send it for no arguments.

        Raises: `msgspec.DecodeError` if the text is not JSON, or nested too deeply; see `decode_json`.
        """
        return decode_json(self.arguments) if self.arguments.strip() else {}

    def parsed_or(self, otherwise: Json) -> Json:
        """Return the decoded arguments; `otherwise` if `parsed` raises an error."""
        try:
            return self.parsed
        except (msgspec.DecodeError, UnicodeError):
            return otherwise


class Artifact(Struct, frozen=True, omit_defaults=True, gc=False):
    """Content that belongs to a tool result or a message, kept in the store by its hash or, if small, inline."""

    kind: str
    """In a message: `text`, `image`, `audio` or `document`. In a tool result also `structured` (JSON that is too
    large for an event), `resource` or `link`; there `text` is the full text of a result that was cut."""
    digest: str | None = None
    """SHA-256 of the content in hex, the key under which the store keeps it; `None` for a link."""
    size_bytes: int | None = None
    """The size of the content; `None` for a link."""
    mime_type: str | None = None
    """The MIME type of the content; `None` if unknown."""
    uri: str | None = None
    """The address that the content came from or that a link leads to; `None` if there is none."""
    name: str | None = None
    """The name of the file or resource; `None` if it has none."""
    data: str | None = None
    """The content in base64. `None`: the store keeps the content under `digest`."""


class ToolResult(Struct, frozen=True, omit_defaults=True, gc=False):
    """The answer to one tool call, as the model sees it."""

    call_id: str
    """The id of the call that this answers."""
    name: str
    """The name of the tool."""
    content: str
    """The text that the model reads."""
    is_error: bool = False
    """True if the call failed or was not run."""
    error_kind: ToolErrorKind | None = None
    """The kind of error; `None` if and only if `is_error` is false."""
    is_simulated: bool = False
    """True if a mock or a model made the result up, so that nothing real was read or changed."""
    structured: Json = None
    """The result as JSON that fits the tool's output schema; `None` if the tool gives only text."""
    artifacts: tuple[Artifact, ...] = ()
    """Content that came with the result. If `content` was cut, the first artifact is the full text."""

    @property
    def is_models_fault(self) -> bool:
        """Whether the call failed through the model's own fault: it calls an unknown tool, or its arguments are cut
        off, are not a JSON object or do not fit the tool's schema."""
        return self.error_kind in _MODEL_FAULTS


class ServerCall(Struct, frozen=True, omit_defaults=True, gc=False):
    """A tool call that the model's server made and answered by itself, within one inference."""

    call_id: str
    """The id that the server gave the call."""
    name: str
    """The name of the tool, such as `web_search` or the name of an MCP server's tool."""
    arguments: str = ""
    """The arguments as JSON; empty if the server does not show them."""
    result: str = ""
    """The result as text or JSON; empty if the server does not show it."""
    is_error: bool = False
    """True if the call failed."""
    offset: int | None = None
    """How many characters of the message's text the model wrote before the call; `None` if it is not known."""


class Message(Struct, frozen=True, omit_defaults=True, gc=False):
    """One message of a transcript."""

    role: Role
    """The author of the message."""
    content: str = ""
    """The text of the message."""
    tool_calls: tuple[ToolCall, ...] = ()
    """In an assistant message: the calls that the model asks for; empty if it asks for none."""
    call_id: str | None = None
    """In a tool message: the id of the call that it answers. `None` in other messages."""
    name: str | None = None
    """In a tool message: the name of the tool that answered. `None` in other messages."""
    is_error: bool = False
    """True for a tool message whose call failed or was not run."""
    reasoning: str | None = None
    """In an assistant message: the model's thinking as text; `None` if the server does not show it."""
    opaque: dict[str, Json] | None = None
    """Data that the provider sent with the message and that Treadle has no field for; it is sent back unchanged. A
    key with the name of a dialect holds data of that dialect; all other keys belong to `openai_chat`."""
    server_calls: tuple[ServerCall, ...] = ()
    """In an assistant message: the tool calls that the model's server made by itself."""
    parts: tuple[Artifact, ...] = ()
    """Images, audio, documents and text files that belong to the message, after its text."""
    own_chars: int = 0
    """How many characters of the text, from the beginning, Treadle wrote or has made safe. A prompt has them
    unchanged, and what follows them as `foreign.let_in` returns it."""
    is_partial: bool = False
    """True for an answer that was stopped while its text came; rows do not have it."""
    is_own: bool = False
    """True for a message that Treadle wrote and the model reads as the user's, such as a nudge."""


class Usage(Struct, frozen=True, omit_defaults=True, gc=False):
    """Token counts of one inference, or their sum over several."""

    input_tokens: int = 0
    """Tokens of the prompt, including `cached_input_tokens` and `cache_write_tokens`."""
    output_tokens: int = 0
    """Tokens that the model generated, including `reasoning_tokens`."""
    cached_input_tokens: int = 0
    """Input tokens that the server read from its cache."""
    reasoning_tokens: int = 0
    """Output tokens that the model spent on thinking."""
    cache_write_tokens: int = 0
    """Input tokens that the server wrote to its cache, counted where it charges more for them."""
    is_reported: bool = True
    """False if the server did not report a part of the counts, which is then 0 or estimated."""

    @property
    def total_tokens(self) -> int:
        """The sum of input and output tokens."""
        return self.input_tokens + self.output_tokens

    def plus(self, other: "Usage") -> "Usage":
        """Return the sum. The operator `+` does the same, and takes longer."""
        return Usage(
            self.input_tokens + other.input_tokens,
            self.output_tokens + other.output_tokens,
            self.cached_input_tokens + other.cached_input_tokens,
            self.reasoning_tokens + other.reasoning_tokens,
            self.cache_write_tokens + other.cache_write_tokens,
            self.is_reported and other.is_reported,
        )

    __add__ = plus

    def __sub__(self, other: "Usage") -> "Usage":
        return Usage(
            self.input_tokens - other.input_tokens,
            self.output_tokens - other.output_tokens,
            self.cached_input_tokens - other.cached_input_tokens,
            self.reasoning_tokens - other.reasoning_tokens,
            self.cache_write_tokens - other.cache_write_tokens,
            self.is_reported and other.is_reported,
        )


UNREPORTED = Usage(is_reported=False)
"""The token counts of an inference whose server did not report them."""


class Settings(Struct, frozen=True, omit_defaults=True, gc=False):
    """Sampling settings of an inference. A setting that is `None` is not sent, and the server's default applies."""

    temperature: float | None = None
    top_p: float | None = None
    max_output_tokens: int | None = None
    """The longest answer, in tokens."""
    seed: int | None = None
    """The seed of the sampling. Only the first request of a run's own conversation sends it unchanged. The others,
    and all that send token ids, send one made of it, of what they send and of `Request.place`, so that each step
    has draws of its own."""
    stop: tuple[str, ...] | None = None
    """Texts that end the answer when the model writes them."""
    logprobs: bool | None = None
    """True to ask for the logprobs of the sampled tokens."""
    return_token_ids: bool | None = None
    """True to ask for the token ids of prompt and answer; vLLM and SGLang can return them."""
    logprobs_mode: LogprobsMode | None = None
    """What the engine's logprobs are of, as it was found out or as the user says; it is not sent."""
    extra: dict[str, Json] | None = None
    """Additional fields of the request body, sent unchanged; they override the fields above."""

    @property
    def has_policy_logprobs(self) -> bool | None:
        """Whether the engine's logprobs are those of the distribution that it samples from with these settings;
        `None` if that is not known."""
        sampling = {"temperature": self.temperature, "top_p": self.top_p, **(self.extra or {})}
        return has_policy_logprobs(self.logprobs_mode, sampling)


class ToolOrigin(Struct, frozen=True, gc=False):
    """The server that a tool is from, if the client of a run named the server."""

    server: str
    """The label that the client gave the server."""
    name: str
    """The name that the tool has there."""


class ToolSpec(Struct, frozen=True, omit_defaults=True, gc=False):
    """The description of a tool: what the model reads, and how the loop runs it."""

    name: str
    description: str
    """What the tool does, written for the model."""
    parameters: dict[str, Json]
    """The complete JSON Schema of the arguments."""
    effect: Effect = Effect.ONCE
    """The effect of running a call again."""
    timeout_seconds: float | None = None
    """How long a call may take; `None`: no limit."""
    is_concurrent: bool = True
    """True if a call may run at the same time as other calls of its step."""
    max_result_chars: int = 100_000
    """The longest result in characters; a longer one is cut in the middle, and its full text is an artifact."""
    max_calls: int | None = None
    """How often the tool may be called in one turn; further calls are not run. `None`: no limit."""
    max_concurrent: int | None = None
    """How many calls of this tool may run at the same time in one run. `None`: only the policy's limit applies."""
    max_retries: int = 3
    """How often in a row the tool may ask for another call. After one more, its calls are not run in that turn."""
    output_schema: dict[str, Json] | None = None
    """The JSON Schema of `ToolResult.structured`; `None` if the tool declares none."""
    may_differ: tuple[str, ...] = ()
    """The differences that are allowed between the results of the same call made twice: `timestamps`, `order`, or a
    regular expression that matches text which may differ."""
    has_fences: bool = False
    """True for a tool of Treadle that itself fences what is foreign in its results."""
    is_external: bool = False
    """True if the program that uses the run makes the calls. The run pauses until it posts their results."""
    origin: ToolOrigin | None = None
    """The server that the tool is from, if the client of the run named it."""
    takes_text: bool = False
    """True if the tool takes a text, which stands in its arguments as `input`."""


class OutputMode(StrEnum):
    """The way in which a model is made to give answers that fit a schema. The answer is checked in every mode."""

    NATIVE = "native"
    """The server constrains decoding to the schema."""
    TOOL = "tool"
    """The model calls a tool whose arguments are the answer. The call is forced if there is no other tool."""
    TEXT = "text"
    """The instructions ask for JSON that fits the schema."""


class OutputSpec(Struct, frozen=True, omit_defaults=True, gc=False):
    """The form that the final answer of a turn must have."""

    schema: dict[str, Json]
    """The JSON Schema that the answer must fit."""
    mode: OutputMode = OutputMode.NATIVE
    """The way in which the model is made to give an answer that fits the schema."""
    tool: str | None = None
    """In the mode `tool`: the name of the tool that takes the answer. `None` in the other modes."""


class Request(Struct, frozen=True, gc=False):
    """The input of one inference."""

    messages: Log[Message]
    """The transcript so far."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools that the model may call."""
    output_schema: dict[str, Json] | None = None
    """The JSON Schema that the text of the final answer must fit; `None`: the answer is free text."""
    required_tool: str | None = None
    """The name of the tool that the model must call; `None`: the model decides."""
    contents: Mapping[str, bytes] = {}
    """Content of the messages' parts that are not inline, by hash. A dialect looks up only what it has not encoded
    before, so this may be a mapping that reads from the store."""
    prior: Prior | None = None
    """The exact ids of the first messages; `None` if they are not known."""
    place: str = ""
    """What tells the conversation from others of its run that may begin alike: those of sub-agents, and summaries.
    Empty for the run's own. The seed depends on it."""


class Completion(Struct, frozen=True, omit_defaults=True, gc=False):
    """The answer of one inference, with what it cost."""

    message: Message
    """The assistant message that the model wrote."""
    finish_reason: FinishReason
    """The reason why the inference ended."""
    usage: Usage = UNREPORTED
    """Token counts. If the server did not report them, `is_reported` is false and they are 0."""
    cost_usd: float | None = None
    """The cost; `None`: unknown, which is different from 0."""
    model: str | None = None
    """The model that answered, as the server names it; `None` if the server does not name it."""
    response_id: str | None = None
    """The server's id of the response; `None` if it has none."""
    settings: Settings | None = None
    """The sampling settings as sent; `None` if unknown."""
    tokens: TokenRecord | None = None
    """The exact tokens; `None` if the engine does not return them."""
    opaque: dict[str, Json] | None = None
    """Fields of the response that Treadle has no type for."""
    is_cached: bool = False
    """True if the answer came from Treadle's cache, so that nothing was sent or paid."""
    contents: dict[str, bytes] | None = None
    """Content of the message's parts that are not inline, by hash. The driver moves it to the store, so this is
    always `None` in a journal."""
    engine: str | None = None
    """The engine that answered and its version, such as `vllm 0.11.2`; `None` if it is not known."""
    weight_version: str | None = None
    """The newest version of the weights that gave the answer; `None` if it is not known."""
    run_ids: tuple[str, ...] = ()
    """The runs with the conversations of the program that answered in the place of a model. What was sampled
    stands in them; `usage` and `cost_usd` are their sums."""


class Window(Struct, frozen=True, omit_defaults=True, gc=False):
    """The context window of a model, as far as it is known."""

    tokens: int
    """How many tokens the prompt and the answer may have together."""
    output_tokens: int = 0
    """The part of `tokens` that is kept free for the answer."""
    source: str = "said"
    """Where `tokens` comes from: `said` (by the user), `preset` (a table of models) or `probe` (the server)."""


class Route(Struct, frozen=True, omit_defaults=True, gc=False):
    """The choice of a model for a turn, and why it was chosen."""

    tier: str
    """The tier that was chosen: `frontier`, `mid` or `small`."""
    model: str
    """The name of the tier's model."""
    reasons: tuple[str, ...] = ()
    """Why the model was chosen, in words."""
    scores: dict[str, float] = {}
    """The score of each tier that was considered, chosen or not; higher is better."""
    rejected: dict[str, str] = {}
    """Why each of the other tiers could not be used at all, by tier."""


class RecalledItem(Struct, frozen=True, omit_defaults=True, gc=False):
    """A memory, or a piece of a document, that was recalled for a turn."""

    store: str
    """The store of the memory, such as `episodic`, or `documents`."""
    item_id: str
    """The id of the memory, or the name of the document and the piece in it."""
    version: int = 1
    """The version of the memory."""
    score: float = 0.0
    """How well the item fits the message; only comparable within one turn."""


class Recalled(Struct, frozen=True, omit_defaults=True, gc=False):
    """The items that were recalled for a turn. The model gets them before the text of the user's message."""

    text: str
    """The recalled items, fenced off as data."""
    items: tuple[RecalledItem, ...] = ()
    """The items in `text`, in order."""
    left_out: int = 0
    """How many further items fit the message, but had no room."""


class Delivery(StrEnum):
    """The treatment of a message that the user sends during a turn."""

    QUEUE = "queue"
    """The message begins the next turn."""
    STEER = "steer"
    """The model sees the message at its next step."""
    INTERRUPT = "interrupt"
    """The message stops the turn, and begins the next one."""


class Option(Struct, frozen=True, omit_defaults=True, gc=False):
    """One of the answers that a question offers."""

    label: str
    """The text of the answer."""
    description: str = ""
    """What the answer means; empty if the label says it."""


class FileDelta(Struct, frozen=True, omit_defaults=True, gc=False):
    """The changes in a sandbox's files since the previous snapshot."""

    changed: dict[str, str] = field(default_factory=dict)
    """New and changed files: path to SHA-256 of the content, in hex."""
    deleted: tuple[str, ...] = ()
    """Paths of deleted files."""
    states: dict[str, str] = field(default_factory=dict)
    """New and changed states that tools keep in addition to the files: name to SHA-256 of the content, in hex."""
