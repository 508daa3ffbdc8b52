"""The tables of treadle.toml."""

import re
from collections.abc import Callable
from datetime import date, datetime
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator

from treadle.models.config.described import Described

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Table(Described, BaseModel):
    """The base of all tables."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PriceTable(Table):
    """A price in USD per million tokens, for models that genai-prices does not know."""

    input_usd_per_million: Annotated[float, Field(ge=0)]
    output_usd_per_million: Annotated[float, Field(ge=0)]
    cached_input_usd_per_million: Annotated[float, Field(ge=0)] | None = None
    cache_write_usd_per_million: Annotated[float, Field(ge=0)] | None = None


class LimitTable(Table):
    """The limits of a server, shared by all models that name them, in all runs of one process."""

    requests_per_minute: Positive | None = None
    tokens_per_minute: Positive | None = None
    max_concurrency: Count | None = None
    """The most requests in flight, for each process."""
    is_adaptive: bool = True
    """True to find out how many requests in flight the server can handle."""


class ModelTable(Table):
    """A named model."""

    model: str
    """The model as `provider:name`, such as `anthropic:claude-sonnet-4-5`."""
    base_url: str | None = None
    """The address of the server, if it is not the provider's own."""
    api_key_env: str | None = None
    """The environment variable that holds the key, if it is not the provider's usual one."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(ge=0, le=1)] | None = None
    max_output_tokens: Count | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    logprobs: bool | None = None
    return_token_ids: bool | None = None
    """True to ask engines that support it (vLLM, SGLang) for the token ids."""
    logprobs_mode: Literal["processed", "scaled", "raw", "scaled_defaults", "raw_defaults"] | None = None
    """What the engine's logprobs are of, if it is known; `treadle rollout` asks the engine."""
    extra: dict[str, Any] | None = None
    """Additional fields of the request body."""
    headers: dict[str, str] | None = None
    """Additional headers; `${NAME}` in a value is replaced by the environment variable."""
    output_mode: Literal["native", "tool", "text"] | None = None
    """How the model is made to give answers that fit a schema; `treadle models check` shows what works."""
    format: str | None = None
    """The text format of tool calls that the server does not parse, such as `hermes`; `auto` derives it from the
    model's name."""
    renderer: str | None = None
    """The renderer that makes the prompt's token ids, such as `chatml`, `hf:FOLDER` or `family:qwen3`, for a model
    of vLLM or SGLang: it is sent token ids and returns token ids. A folder is relative to the folder of this
    file."""
    engine: str | None = None
    """The endpoint of vLLM or SGLang for token ids, such as `vllm_completions`. Default: the server is asked."""
    options: dict[str, Any] = {}
    """Options that only this provider's dialect has."""
    timeout_seconds: Positive = 600.0
    """The longest time in which the server sends nothing."""
    connect_timeout_seconds: Positive = 10.0
    total_timeout_seconds: Positive = 1800.0
    """The limit of all attempts, including the waiting between them."""
    max_attempts: Count = 6
    """How often a request is sent until it succeeds."""
    price: PriceTable | None = None
    """The price, if it is not known."""
    context_tokens: Count | None = None
    """The context window in tokens, if it is not known or should be smaller."""
    can_call_tools: bool | None = None
    """False if the model cannot call tools, so that it is offered none of those that Treadle adds."""
    limit: str | None = None
    """The name of the table in `limits` that its requests obey."""
    fallback: list[str] = []
    """Other named models, which are asked in this order if the model fails."""
    cooldown_seconds: Annotated[float, Field(ge=0)] = 30.0
    """How long a model that failed is not asked again, as long as other models of its fallback can be asked."""
    cache: str | None = None
    """A folder in which answers are kept, so that equal requests cost nothing."""


class TierTable(Table):
    """The models of a tier, and what a router needs to know about them. The settings apply to each model."""

    model: str
    """A model of this file, or `provider:name`."""
    fallback: list[str] = []
    """Other models, which are asked in this order if the model fails."""
    quality: Annotated[float, Field(ge=0, le=1)] | None = None
    """The quality of the answers, from 0 to 1. Default: 1 for `frontier`, 0.6 for `mid`, 0.25 for `small`."""
    price: PriceTable | None = None
    """The price of the tier's models, if it is not known."""
    tool_strength: Literal["weak", "medium", "strong"] | None = None
    """How well the models call tools. A tier that is `weak` is not chosen if the agent has tools. If the agent
    has many tools, only a `strong` tier is chosen."""
    context_tokens: Count | None = None
    """How many tokens the prompt and the answer may have together. Default: what is known about the model."""
    sees_images: bool | None = None
    """Whether the models accept images."""
    first_token_seconds: Positive | None = None
    """The expected time until an answer begins. It counts until the time was measured."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    max_output_tokens: Count | None = None
    extra: dict[str, Any] | None = None
    """Additional fields of the request body."""


class RouterTable(Table):
    """A router with its settings."""

    name: str = "rules"
    """`rules`, `scored`, `cascade`, `fixed`, or a router of another package."""
    allows_weaker: bool = False
    """True if a weaker tier may take the place of one that fails or is missing, if there is no better one."""
    options: dict[str, Any] = {}
    """The settings of this router, such as `judge` of `cascade`."""


class TelemetryTable(Table):
    """The records that are made by commands which drive runs."""

    turn_log: str | None = None
    """A file that gets a line of JSON for each turn, relative to the folder of this file. Only a log of turns is
    written to."""
    turn_log_max_bytes: Count = 50_000_000
    """The size from which on the file is renamed and a new one begun."""
    turn_log_keep: Count = 5
    """How many renamed files are kept."""
    open_telemetry: bool = False
    """True to report spans and metrics to OpenTelemetry, with the providers that the process has."""
    records_content: bool = False
    """True if the spans have the contents of messages, arguments and results."""


class ChatTable(Table):
    """What a new session of `treadle chat` uses where no option says otherwise."""

    persona: str | None = None
    """The YAML file of a persona, relative to the folder of this file."""
    user: str | None = None
    """The user whom the memories are about."""
    memory: bool | None = None
    """Whether the agent remembers from one session to the next. Default: as the persona says."""


class AgentTable(Table):
    """An agent that `treadle serve` offers by its name."""

    model: str | None = None
    """A model of this file, or `provider:name`. Default: that of the persona, else the default model."""
    description: str | None = None
    """What the agent is for, in a sentence, for the programs that choose among agents over A2A and MCP."""
    instructions: str | None = None
    """The system message."""
    tools: list[str] = []
    """Toolsets and functions, as for `--tools`. Files are relative to the folder of this file."""
    persona: str | None = None
    """The YAML file of a persona, relative to the folder of this file."""
    memory: bool | None = None
    """Whether the agent remembers from one conversation to the next. Default: as the persona says."""
    skills: list[str] = []
    """Folders of skills, relative to the folder of this file."""
    documents: list[str] = []
    """Documents that the agent knows, relative to the folder of this file."""
    vector_stores: list[str] = []
    """The ids of the vector stores that its tool `file_search` searches."""
    max_steps: Count | None = None
    max_tool_calls: Annotated[int, Field(ge=0)] | None = None
    max_tokens: Count | None = None
    max_cost_usd: Positive | None = None
    deadline_seconds: Positive | None = None
    approve: dict[str, Literal["always", "ask", "never"]] = {}
    """Which calls need approval: by the name of a tool or an effect. The client is asked."""


class KeyTable(Table):
    """A key of a client of `treadle serve`."""

    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]
    """The hash of the key, as `treadle serve --new-key` prints it. The key itself is kept nowhere."""
    scopes: list[Literal["run", "read", "admin"]] = ["run", "read"]
    """What the key is for: `run` begins and changes runs, `read` reads them, `admin` also sees those of others."""
    expires: datetime | date | None = None
    """When the key ends."""
    requests_per_minute: Positive | None = None
    max_open_runs: Count | None = None
    """The most runs that may be under way at the same time."""
    max_cost_usd: Positive | None = None
    """What its runs may cost in a period. What is under way when that is reached goes on."""
    max_tokens: Count | None = None
    """The tokens, of prompts and answers, that its runs may use in a period."""
    budget_period: Literal["day", "month", "total"] = "month"
    """The period of `max_cost_usd` and `max_tokens`: a day or a month in UTC, or all time."""


class WebhookTable(Table):
    """A program that `treadle serve` tells of what happens."""

    url: str
    """The address that gets the events."""
    secret_env: str
    """The environment variable that holds the secret by which events are signed."""
    events: list[
        Literal[
            "response.completed",
            "response.failed",
            "response.incomplete",
            "response.cancelled",
            "run.waiting",
        ]
    ] = []
    """The types of the events that it gets; empty: all."""
    allow_private: bool = False
    """True if the address may lead to this machine or to a private network."""


class ServeTable(Table):
    """What `treadle serve` allows."""

    keys: dict[str, KeyTable] = {}
    """The keys of its clients by the names of their owners. Without keys, only programs of this machine may ask."""
    webhooks: dict[str, WebhookTable] = {}
    """The programs that are told when a turn is over or a run waits, by name."""
    logs_requests: bool = False
    """True to write a line of JSON for each request to standard error. It has no key, query or body."""
    webhook_secret_env: str | None = None
    """The environment variable that holds the secret by which the events for addresses are signed that clients give
    for their runs. Without it, they can give none."""
    allow_origins: list[str] = []
    """The origins of web pages that may ask, such as `https://app.example`."""
    allow_hosts: list[str] = []
    """The host names under which the server is reached, if it has keys; empty: any."""
    max_body_bytes: Count = 20_000_000
    body_timeout_seconds: Positive = 30.0
    """How long a client may take to send a request."""
    window: Count = 256
    """How many interrupted runs are continued at the same time."""
    embeddings: str | None = None
    """A model of embeddings for the files of vector stores: a model of this file, or `provider:name`. Default:
    files are found by their words."""
    mcp_addresses: list[str] = []
    """The addresses of MCP servers that clients may name in a tool of the type `mcp`. One that ends with `/` stands
    for all addresses that begin with it."""
    mcp_servers: dict[str, dict[str, Any]] = {}
    """MCP servers that clients may name by their label alone, each as an entry of `mcpServers`."""
    mcp_approval: Literal["always", "never"] = "always"
    """Whether calls of the tools of a client's MCP server need an approval if its request does not say. It is
    `never` on servers of llama-stack."""

    @field_validator("keys")
    @classmethod
    def _check_owners(cls, keys: dict[str, KeyTable]) -> dict[str, KeyTable]:
        # A client without a name is one of a server without keys, which sees all runs.
        if "" in keys:
            raise ValueError("the name of a key's owner is empty")
        owners: dict[str, str] = {}
        for name, key in keys.items():
            if (other := owners.setdefault(key.sha256, name)) != name:
                raise ValueError(f"{other!r} and {name!r} have the same key; make one for each")
        return keys

    @field_validator("allow_origins")
    @classmethod
    def _check_origins(cls, origins: list[str]) -> list[str]:
        for origin in origins:
            if not re.fullmatch(r"https?://[^/?#*@]+", origin):
                raise ValueError(
                    f"{origin!r} is no origin; give it as a browser sends it: https://app.example"
                )
        return origins

    @field_validator("mcp_addresses")
    @classmethod
    def _check_addresses(cls, addresses: list[str]) -> list[str]:
        for address in addresses:
            if not re.fullmatch(r"https?://[^/?#@\\\s]+/[^?#\\\s]*", address):
                raise ValueError(
                    f"{address!r} is no address of an MCP server; give one such as https://mcp.example.com/mcp, or "
                    "https://mcp.example.com/ for all of that host"
                )
        return addresses


class RegressionTable(Table):
    """How `treadle test` tests agents with recorded runs."""

    folder: str = "tests/agent_runs"
    """The folder of the recordings, relative to the folder of this file."""
    agent: str | None = None
    """The agent that is tested, as `file.py:NAME` or `package.module:NAME`: an `Agent`, or a function that returns
    one. Default: the one that each recording describes."""
    agents: dict[str, str] = {}
    """Other agents, by patterns of the names of their recordings, such as `billing-*`."""
    tools: Literal["recorded", "live-read-only", "live"] = "recorded"
    """Which tools are called: none, those with the effect `pure`, or all. Other calls get the recorded results."""
    ignore: list[str] = []
    """Regular expressions for what may differ, such as dates."""
    redact: list[str] = []
    """Regular expressions for secrets that a recording must not have, besides keys of servers and the values of
    variables with names such as `API_TOKEN`."""
    rewards: dict[str, float | dict[str, Any]] = {}
    """The scorers of `--live`, as for `treadle eval`. Without an expectation of its own, a run is compared with the
    recording. Default: `check` for runs of tasks, and `calls`."""
    samples: Count = 1
    """How often `--live` runs the agent for each recording."""
    min_score: Annotated[float, Field(ge=0, le=1)] | None = None
    """The least mean score of `--live`."""
    must_not_drop: bool = False
    """True if `--live` fails when the scores are significantly below those that `--live --update` has stored."""
    level: Annotated[float, Field(gt=0.5, lt=1)] = 0.95
    """The level of the intervals and of the test."""


def _named_by(key: str) -> Callable[[object], object]:
    return lambda value: {key: value} if isinstance(value, str) else value


TierValue: TypeAlias = Annotated[
    TierTable, BeforeValidator(_named_by("model"), json_schema_input_type=TierTable | str)
]
"""A tier as it is written: a table, or the name of its model."""
RouterValue: TypeAlias = Annotated[
    RouterTable, BeforeValidator(_named_by("name"), json_schema_input_type=RouterTable | str)
]
"""A router as it is written: a table, or its name."""


TierName: TypeAlias = Literal["frontier", "mid", "small"]
"""The names of tiers, the best first."""


class ConfigFile(Table):
    """The content of treadle.toml."""

    model: str | None = None
    """The default model: a name of `models`, `provider:name`, `auto` (the default with `tiers`) or `tier:NAME`."""
    models: dict[str, ModelTable] = {}
    limits: dict[str, LimitTable] = {}
    tiers: dict[TierName, TierValue] = {}
    """The tiers of the models `auto` and `tier:NAME`. Each is a model, or a table of models with their
    properties."""
    router: RouterValue = RouterTable()
    """What chooses the tier for the model `auto`: the name of a router, or a table with its settings."""
    judge: str | None = None
    """What judges messages: `patterns`, `model:` and a name, or `none`. Default: `none`; in chats, `patterns`."""
    chat: ChatTable = ChatTable()
    """What a new session of `treadle chat` uses where no option says otherwise."""
    telemetry: TelemetryTable = TelemetryTable()
    """The records that are made by commands which drive runs."""
    agents: dict[str, AgentTable] = {}
    """The agents that `treadle serve` offers, by name. It offers `models` too."""
    serve: ServeTable = ServeTable()
    """What `treadle serve` allows."""
    test: RegressionTable = RegressionTable()
    """How `treadle test` tests agents."""
    tiers_prefix: str = "TREADLE"
    """The prefix of the environment variables that define tiers, such as TREADLE_SMALL_MODELS."""
