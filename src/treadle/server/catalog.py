"""The agents that a server offers, by name: those of the configuration, and its models."""

import asyncio
from collections import OrderedDict
from collections.abc import Container, Mapping, Sequence
from copy import copy
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.core.policy import Policy
from treadle.core.registry import did_you_mean
from treadle.core.types import Json
from treadle.http.locks import new_reentrant_lock
from treadle.journal.protocol import Journal
from treadle.knowledge.files.file_search import NAME, FileSearch
from treadle.loop.listener import Hook
from treadle.models.config.presets import find_preset, split_name
from treadle.models.config.recipe import Config
from treadle.models.config.tables import AgentTable
from treadle.models.wire.served import AUTO, NONE, REQUIRED, make_text_tool
from treadle.runs.options import Face, read_context
from treadle.server.admission.given_servers import MCP, GivenServer, approvals_of, open_servers
from treadle.tools.client_tools import ClientTools
from treadle.tools.mcp.client_servers import ClientServers
from treadle.tools.resolve import place_in

_MAX_AGENTS = 256
_RELAYED = Policy(max_steps=None, compact_at=None)
_LIMITS = ("max_steps", "max_tool_calls", "max_tokens", "max_cost_usd", "deadline_seconds")


class ClientWish(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a client wants of an agent, besides its name."""

    instructions: str | None = None
    """Instructions besides the agent's own."""
    tools: tuple[dict[str, Json], ...] = ()
    """The tools that the client runs, as definitions."""
    searches: tuple[dict[str, Json], ...] = ()
    """The settings of the tool `file_search`; at most one."""
    servers: tuple[GivenServer, ...] = ()
    """The MCP servers that the client names."""
    settings: dict[str, Json] = {}
    """Settings of the model, such as `temperature`."""
    schema: dict[str, Json] | None = None
    """The JSON Schema of the answers."""
    max_tool_calls: int | None = None
    max_steps: int | None = None
    compact_threshold: int | None = None
    is_relayed: bool = False
    """True if the client gets every answer of the model as it is."""
    client: str = ""
    """The name of the client. Clients share no session with MCP servers."""


class UnknownAgentError(ConfigError):
    """Raised if a client names an agent that the server does not offer."""


class AgentUnavailableError(ConfigError):
    """Raised if an agent cannot be made, whatever a client asks for: the server's operator has to mend that."""


def names_of(config: Config, model: str | None) -> tuple[str, ...]:
    """Return the names of the agents and models that are served. Raises: `ConfigError` if there are none."""
    file = config.file
    twice = sorted(file.agents.keys() & file.models.keys())
    if twice:
        raise ConfigError(f"{twice[0]!r} is the name of a model and of an agent; rename one of them")
    names = dict.fromkeys([*([model] if model else []), *file.agents, *file.models])
    if not names and config.default_model is not None:
        names = {config.default_model: None}
    if not names:
        raise ConfigError(
            "there is nothing to serve: give treadle.toml a table [agents.NAME] or [models.NAME], or name a model "
            "with --model"
        )
    return tuple(names)


class AgentCatalog:
    """The agents of a configuration, made when they are first asked for."""

    def __init__(
        self, config: Config, journal: Journal, names: tuple[str, ...], *, max_agents: int = _MAX_AGENTS
    ) -> None:
        """Make a catalog that keeps `max_agents` agents. What clients want besides makes an agent of its own."""
        self.names = names
        self._max_agents = max_agents
        self.config = config
        self.hooks: list[Hook] = []
        """The hooks of the agents that are made from now on."""
        self._journal = journal
        self._agents: OrderedDict[bytes, Agent[Any]] = OrderedDict()
        self._faces: dict[str, Face] = {}
        """What the personas of agents have, as far as they were read."""
        self._dialects: dict[str, str | None] = {}
        """The dialects of models, as far as they were looked up."""
        self._lock = new_reentrant_lock()

    async def open_agent(self, name: str, wish: ClientWish, key: bytes | None = None) -> Agent[Any]:
        """Return the agent with this name, connected to the servers that the client names, if it names some.

        `key` is what `key_of` returns, if it is known. Raises: as `agent` does; `RequestRefused` if a server cannot
        be used.
        """
        self._check_name(name)
        if (known := self._find(key or self.key_of(name, wish), name, wish)) is not None:
            return known
        if not wish.servers:
            return await asyncio.to_thread(self.agent, name, wish)
        servers = await open_servers(wish.servers, self.config.file.serve)
        agent: Agent[Any] | None = None
        try:
            agent = self.agent(name, wish, servers)
        finally:
            if agent is None or servers not in agent.kit.given:  # another request has made it meanwhile
                await servers.aclose()
        return agent

    def _check_name(self, name: str) -> None:
        if name not in self.names:
            hint = did_you_mean(name, self.names, f"the models are {', '.join(self.names) or 'none'}")
            raise UnknownAgentError(f"there is no model {name!r}{hint}")

    def key_of(self, name: str, wish: ClientWish) -> bytes:
        """Return what tells the agent from others. It is the same whatever the instructions are."""
        # Instructions often differ from run to run where all else is the same, and are cheap to replace.
        known = replace(wish, instructions=None, client=wish.client if wish.servers else "")
        return msgspec.json.encode((name, known), order="deterministic")

    def agent(
        self, name: str, wish: ClientWish = ClientWish(), servers: ClientServers | None = None
    ) -> Agent[Any]:
        """Return the agent with this name, with what the client wants besides. Any thread may call this.

        `servers` are the servers of the wish, if it has some. Raises: `UnknownAgentError`;
        `AgentUnavailableError`; `ConfigError` if the client wants what cannot be.
        """
        self._check_name(name)
        key = self.key_of(name, wish)
        with self._lock:
            if key not in self._agents:
                self._agents[key] = self._make_checked(name, wish, servers)
                if len(self._agents) > self._max_agents:
                    self._agents.popitem(last=False)
            found = self._find(key, name, wish)
        assert found is not None
        return found

    def _find(self, key: bytes, name: str, wish: ClientWish) -> Agent[Any] | None:
        """Return an agent that was made, with the instructions of a wish; `None` if it was not."""
        with self._lock:
            found = self._agents.get(key)
            if found is None:
                return None
            self._agents.move_to_end(key)
        told = self._instructions(name, wish)
        if found.instructions != told:
            found = copy(found)
            found.instructions = told
        return found

    def _make_checked(self, name: str, wish: ClientWish, servers: ClientServers | None) -> Agent[Any]:
        """Return a new agent, or find out who has to mend what is wrong with it."""
        try:
            return self._make(name, wish, servers)
        except ConfigError as error:
            fault = error
        try:
            self._make(name, ClientWish())
        except ConfigError as error:
            raise AgentUnavailableError(
                f"{name!r} cannot be used until its operator mends this: {error}"
            ) from None
        raise fault

    def faults(self) -> list[str]:
        """Return what keeps agents and models from being used, each as a sentence with its name."""
        found = []
        for name in self.names:
            try:
                self.agent(name)
            except (AgentUnavailableError, ConfigError) as error:
                found.append(str(error))
        return found

    def describe(self, name: str) -> str:
        """Return what an agent or model is for, in a sentence."""
        table = self.config.file.agents.get(name)
        return (table and table.description) or f"Ask {name}."

    def is_agent(self, name: str) -> bool:
        """Return whether a name is that of an agent, and not of a model."""
        return name in self.config.file.agents

    def dialect_of(self, name: str) -> str | None:
        """Return the dialect of a model or of an agent's model; `None` if no server is asked, or none is known."""
        if name not in self._dialects:
            try:
                model = self._model_of(name) if name in self.names else None
            except ConfigError:  # `agent` says what is wrong
                model = None
            if model is None:
                return None
            preset = find_preset(split_name(self.config.table_of(model).model)[0])
            self._dialects[name] = None if preset is None else preset.dialect
        return self._dialects[name]

    def _model_of(self, name: str) -> str | None:
        """Return the model of an agent, or the model with this name; `None` if there is none.

        Raises: `ConfigError`.
        """
        table, face = self.config.file.agents.get(name) or AgentTable(model=name), self._face_of(name)
        return table.model or face.model or self.config.default_model

    def _face_of(self, name: str) -> Face:
        """Return what the persona of an agent has, if it has one. Raises: `ConfigError`, `UntrustedError`."""
        table = self.config.file.agents.get(name)
        if table is None or table.persona is None:
            return Face()
        if name not in self._faces:
            self._faces[name] = read_context({"persona": str(self.config.resolve(table.persona))})[1]
        return self._faces[name]

    def _instructions(self, name: str, wish: ClientWish) -> str | None:
        table = self.config.file.agents.get(name)
        texts = [None if table is None else table.instructions, wish.instructions]
        return "\n\n".join([text for text in texts if text]) or None

    def _make(self, name: str, wish: ClientWish, servers: ClientServers | None = None) -> Agent[Any]:
        table, face = self.config.file.agents.get(name) or AgentTable(model=name), self._face_of(name)
        options: dict[str, Any] = {"hooks": self.hooks, "journal": self._journal}
        options["instructions"] = self._instructions(name, wish)
        folder = None if self.config.path is None else self.config.path.parent
        placed = [item if folder is None else place_in(item, folder) for item in table.tools]
        own = [name for name in placed if name == NAME] or ([NAME] if table.vector_stores else [])
        tools: list[Any] = [item for item in placed if item != NAME]
        tools += () if placed else face.tools
        tools += [FileSearch(table.vector_stores) for _ in own]
        tools += [FileSearch(**search) for search in wish.searches]
        tools += [ClientTools(list(wish.tools))] if wish.tools else []
        tools += [] if servers is None else [servers]
        options["tools"] = tools
        if table.persona is not None:
            options["persona"] = str(self.config.resolve(table.persona))
        for kind in ("skills", "documents"):
            options[kind] = [str(self.config.resolve(path)) for path in getattr(table, kind)]
        if table.memory is not None:
            options["memory"] = table.memory
        policy = _policy_of(table, wish, face.policy)
        if servers is not None:
            asks = approvals_of(wish.servers, servers, policy)
            policy = replace(policy, approve={**policy.approve, **asks})
        # Given in any case, so that the limits of a client hold for its request alone.
        options["policy"] = policy
        model = self._model_of(name)
        made = None if model is None else self.config.model(model, **self._settings_of(model, wish))
        agent = Agent(made, schema=wish.schema, **options)
        if servers is not None:
            agent.kit.own_toolset(servers)
        return agent

    def _settings_of(self, model: str, wish: ClientWish) -> dict[str, Any]:
        """Return the options of a model that a client may set. It cannot raise the longest answer of the model."""
        settings, known = dict(wish.settings), self.config.table_of(model)
        if known.renderer is not None:
            settings.pop("strict_tools", None)  # only chat endpoints decode calls within schemas
        if "extra" in settings:
            settings["extra"] = {**(known.extra or {}), **wish.settings["extra"]}
        if "max_output_tokens" in settings and known.max_output_tokens is not None:
            settings["max_output_tokens"] = min(settings["max_output_tokens"], known.max_output_tokens)
        return settings

    async def close(self) -> None:
        """Close what the agents hold."""
        for agent in self._agents.values():
            await agent.close()


def _policy_of(table: AgentTable, wish: ClientWish, base: Policy) -> Policy:
    """Return the policy of an agent: `base`, with what its table says. The client can only lower the limits."""
    if wish.is_relayed:
        return _RELAYED
    given: dict[str, Any] = {
        name: getattr(table, name) for name in _LIMITS if getattr(table, name) is not None
    }
    for name in ("max_tool_calls", "max_steps", "compact_threshold"):
        asked = getattr(wish, name)
        most = given.get(name, getattr(base, name))
        if asked is not None:
            given[name] = asked if most is None else min(asked, most)
    if table.approve:
        given["approve"] = dict(table.approve)
    return replace(base, **given)


def check_choice(
    agent: Agent[Any], choice: str, *, allows_all: bool = True, given: Container[Json] = ()
) -> None:
    """Check that an agent whose model must call a tool can answer at some time. Raises: `ConfigError`.

    `allows_all` is False if the client allows some tools only, and `given` has the types of the client's tools that
    run here.
    """
    tools = {tool.spec.name: tool.spec.is_external for tool in agent.tools.values()}
    own = [tool.spec.name for tool in agent.tools.values() if tool.spec.origin is None]
    left = [name for name in own if not tools[name] and name not in given]
    if left and not allows_all:
        raise ConfigError(
            f"tool_choice cannot take away the agent's own tools, such as {left[0]!r}: leave allowed_tools out"
        )
    if choice in (AUTO, NONE) or (choice == REQUIRED and all(tools.values()) and tools):
        return
    if choice == REQUIRED or (choice in tools and not tools[choice]):
        raise ConfigError(
            f"tool_choice {choice!r:.100} needs tools of the client, and none that run here: the model would call "
            "them and never answer"
        )
    if choice not in tools:
        raise ConfigError(f"tool_choice names {choice!r:.100}, which is none of the tools")


class GivenTools(Struct, frozen=True):
    """The tools of a request, by their kinds."""

    functions: tuple[dict[str, Json], ...]
    """The tools that the client runs."""
    searches: tuple[dict[str, Json], ...]
    """The settings of the tool `file_search`; none if the request does not ask for it."""
    servers: list[dict[str, Json]]
    """The tools of the type `mcp`, as they were given."""


def client_tools(tools: Sequence[Mapping[str, Json]]) -> GivenTools:
    """Return the tools of a request. Raises: `ConfigError` for a kind that clients cannot give."""
    functions: list[dict[str, Json]] = []
    searches: list[dict[str, Json]] = []
    servers: list[dict[str, Json]] = []
    for number, tool in enumerate(tools):
        if tool.get("type") == "function":
            functions.append(dict(tool))
        elif tool.get("type") == "custom":
            functions.append(make_text_tool(tool))
        elif tool.get("type") == MCP:
            servers.append(dict(tool))
        elif tool.get("type") == NAME and not searches:
            try:
                searches.append(_read_search(tool))
            except ConfigError as error:
                raise ConfigError(f"tools[{number}]: {error}") from None
        else:
            raise ConfigError(
                f"tools[{number}] is of the type {tool.get('type')!r}; clients can give functions, custom tools, "
                f"MCP servers and one {NAME}, and the agent has the other tools"
            )
    return GivenTools(tuple(functions), tuple(searches), servers)


def _read_search(tool: Mapping[str, Json]) -> dict[str, Json]:
    """Return the settings of a `file_search` of the API. Raises: `ConfigError`."""
    given: dict[str, Json] = {"vector_store_ids": tool.get("vector_store_ids")}
    names = ("max_num_results", "filters")
    given |= {name: tool[name] for name in names if tool.get(name) is not None}
    ranking = tool.get("ranking_options")
    if isinstance(ranking, dict) and ranking.get("score_threshold") is not None:
        given["score_threshold"] = ranking["score_threshold"]
    FileSearch(**given)
    return given
