"""MCP servers as toolsets: `MCPServer` is one, `MCPServers` are several."""

import asyncio
import contextlib
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any, Self

from msgspec.structs import replace

from treadle.core.errors import ConfigError, ToolError
from treadle.core.prompts.foreign import let_in_tool
from treadle.core.spec import PartSpec
from treadle.core.types import Effect, Json, ToolSpec
from treadle.tools.context import ToolContext
from treadle.tools.mcp.connection import SESSIONS, RemoteCall
from treadle.tools.mcp.elicitation import Elicitations
from treadle.tools.mcp.failure import UnreachableError
from treadle.tools.mcp.run_server import RunServer, open_run_server
from treadle.tools.mcp.server_link import ServerLink
from treadle.tools.mcp.target import Target, make_part, name_of_command, name_of_url, safe_name, write_entry
from treadle.tools.mcp.translation import effect_of, make_output_check, to_output
from treadle.tools.protocol import Tool, ToolOutput
from treadle.tools.schema.validation import ArgumentChecker, read_effect

TIMEOUT_SECONDS = 120.0
START_TIMEOUT_SECONDS = 60.0
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class _Connected:
    """A toolset whose sessions are opened and closed, with and without blocking."""

    async def open(self) -> Self:
        """Connect without blocking, so that `tools` does not block. Raises: `ConfigError`."""
        raise NotImplementedError

    async def aclose(self) -> None:
        """End the shared sessions and their processes without blocking."""
        raise NotImplementedError

    def close(self) -> None:
        """End the shared sessions and their processes. A later call starts them again. Idempotent."""
        SESSIONS.run(self.aclose())

    def __enter__(self) -> Self:
        SESSIONS.run(self.open())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()


class MCPServer(_Connected):
    """One MCP server: a command to start, a URL, or an SDK server object in this process.

    It is connected when its tools are first requested, and connected again after it has ended. By default one
    session serves all runs. With `per_run` each run has its own session, and its own process if the server is a
    command. With `run_files` it also has the run's files, see `run_server`.
    """

    def __init__(
        self,
        where: Any = None,
        *,
        command: str | None = None,
        url: str | None = None,
        server: Any = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        cwd: str | None = None,
        name: str | None = None,
        transport: str | None = None,
        per_run: bool = False,
        run_files: bool = False,
        timeout_seconds: float | None = TIMEOUT_SECONDS,
        start_timeout_seconds: float = START_TIMEOUT_SECONDS,
        effects: Mapping[str, Effect | str] | None = None,
        may_differ: Mapping[str, Sequence[str]] | None = None,
        secrets: Sequence[str] = (),
        public_only: bool = False,
    ) -> None:
        """Describe a server. `where` is a command, a URL or a server object, as are `command`, `url` and `server`.

        A URL uses Streamable HTTP, or the older transport with `transport="sse"`. A command's environment is
        `env` and a few variables of this process, such as PATH and HOME. `timeout_seconds` limits one call.
        `effects` and `may_differ` (see `ToolSpec.may_differ`) map the server's names of tools to values that the
        server does not give, or gives wrongly. `secrets` are further texts that no message may contain, besides
        the values of `env` and `headers`. With `public_only`, a URL that leads to an address outside of the public
        internet is not connected to.

        With `run_files`, the server is a command that is started for each run. Its environment has the run's id
        and the folder of the run's files, as TREADLE_RUN_ID and TREADLE_RUN_FILES; `${NAME}` stands for them in
        `args` and `env`. A call of its tools can be repeated unless `effects` says `once`, because the folder is
        as it was before the call.
        Raises: `ConfigError`.
        """
        if isinstance(where, str):
            command, url = (command, where) if re.match("https?://", where) else (where, url)
        elif where is not None:
            server = where
        if sum(item is not None for item in (command, url, server)) != 1:
            raise ConfigError("an MCP server needs either a command, a url or a server in this process")
        if run_files and command is None:
            raise ConfigError("run_files (runFiles) needs a command, which is started for each run")
        self.name = name or _name_of(command, args, url, server)
        self.target = Target(
            self.name,
            command,
            _check_args(args, self.name),
            _check_env(env or {}, self.name),
            cwd,
            url,
            _check_headers(headers or {}, self.name),
            _choose_transport(self.name, command, url, transport),
            server,
            start_timeout_seconds,
            tuple(secrets),
            is_public_only=public_only,
        )
        if timeout_seconds is not None:
            _check_seconds(self.name, "timeout_seconds", timeout_seconds)
        _check_seconds(self.name, "start_timeout_seconds", start_timeout_seconds)
        self.timeout_seconds = timeout_seconds
        self.is_per_run = per_run or run_files
        self.has_run_files = run_files
        self.effects = {
            key: read_effect(value, f"MCPServer {self.name!r}: the effect of {key!r}")
            for key, value in (effects or {}).items()
        }
        self.may_differ = {key: tuple(value) for key, value in (may_differ or {}).items()}
        self.source: dict[str, Json] | None = None
        """The entry of `mcpServers` that this server was read from. `None`: it was described in a program."""
        self._link = ServerLink(self.target)
        self._mask = self.target.result_mask()
        self._tools: tuple[MCPTool, ...] | None = None
        self._listing: list[Any] = []
        """The server's listing that `_tools` were made from."""

    @property
    def can_change(self) -> bool:
        return not self.is_per_run and self._link.can_change

    @property
    def is_outdated(self) -> bool:
        """Whether the server has changed its tools since they were listed for `tools`."""
        link = self._link
        return (
            self._tools is not None
            and not self.is_per_run
            and (link.is_listing_old or link.listing is not self._listing)
        )

    async def renew(self) -> None:
        """List the tools again if the server has changed them. They stay as they are if it cannot be reached."""
        if self.is_outdated:
            with contextlib.suppress(UnreachableError):
                self._tools = await SESSIONS.hop(self._list())

    def tools(self) -> "tuple[MCPTool, ...]":
        """Return the server's tools. The first call connects, which blocks. Raises: `ConfigError`."""
        if self._tools is None:
            SESSIONS.run(self.open())
        assert self._tools is not None
        return self._tools

    async def open(self) -> Self:
        if self._tools is None:
            try:
                self._tools = await SESSIONS.hop(self._list())
            except UnreachableError as error:
                raise ConfigError(str(error)) from error
        return self

    async def aclose(self) -> None:
        await SESSIONS.hop(self._link.close())

    def leave(self) -> None:
        """End the shared session once no call uses it, and do not wait for that. A later call opens a new one."""
        if self._link.has_session:
            SESSIONS.start(self._link.leave)

    @property
    def entry(self) -> dict[str, Json] | str:
        """The server as an entry of `mcpServers`, or the reason why it cannot be written as one."""
        if self.source is not None:
            return self.source
        options: dict[str, Json] = {}
        if self.is_per_run:
            options["runFiles" if self.has_run_files else "perRun"] = True
        if self.timeout_seconds != TIMEOUT_SECONDS:
            options["timeout"] = self.timeout_seconds
        if self.target.start_timeout_seconds != START_TIMEOUT_SECONDS:
            options["startTimeout"] = self.target.start_timeout_seconds
        if self.effects:
            options["effects"] = {name: effect.value for name, effect in self.effects.items()}
        if self.may_differ:
            options["mayDiffer"] = {name: list(rules) for name, rules in self.may_differ.items()}
        return write_entry(self.target, options)

    @property
    def part(self) -> PartSpec:
        """The toolset by name and settings, without secrets."""
        return make_part({self.name: self.entry})

    def __repr__(self) -> str:
        return f"<MCP server {self.name!r}>"

    async def call(self, tool: "MCPTool", arguments: dict[str, Json], context: ToolContext) -> ToolOutput:
        """Call one of the server's tools for a run. Raises: `ToolError`."""
        own = RunServer(self._link, None)
        if self.is_per_run:
            own = await context.scope.get((self, "mcp"), partial(self._open_own, context.run_id))

        async def report(done: float, total: float | None, message: str | None) -> None:
            amount = f"{done:g}" if total is None else f"{done:g}/{total:g}"
            context.progress(f"{amount} {message}" if message else amount)

        elicitations = Elicitations(self.name, context, self._mask)
        call = RemoteCall(
            tool.remote_name,
            arguments,
            context.idempotency_key,
            # Without a listener, the server need not report progress.
            report if context.is_heard else None,
            elicitations.ask,
            can_repeat=tool.spec.effect is not Effect.ONCE,
        )
        try:
            async with own.lend(context):
                result = await elicitations.run(SESSIONS.hop(own.link.call(call)))
        except ToolError:
            raise
        except BaseException:
            # The call was cancelled, or its question is answered later.
            SESSIONS.loop.call_soon_threadsafe(own.link.suspect)
            raise
        return to_output(result, tool.is_output_valid).without(self._mask)

    async def _list(self) -> "tuple[MCPTool, ...]":
        if not self.is_per_run:
            try:
                return await self._list_of(self._link)
            except BaseException:
                await self._link.close()
                raise
        # The server is started only to list its tools. Each run starts its own.
        async with self._open_own("") as own:
            return await self._list_of(own.link)

    def _open_own(self, run_id: str) -> AbstractAsyncContextManager[RunServer]:
        return open_run_server(self.target, run_id, has_files=self.has_run_files)

    async def _list_of(self, link: ServerLink) -> "tuple[MCPTool, ...]":
        await link.get()
        self._listing = link.listing
        listing = {item.name: item for item in reversed(self._listing)}
        unknown = (self.effects.keys() | self.may_differ.keys()) - listing.keys()
        if unknown:
            known = ", ".join(reversed(listing)) or "none"
            raise UnreachableError(
                f"the MCP server {self.name!r} has no tool {min(unknown)!r}; its tools are: {known}"
            )
        tools: dict[str, MCPTool] = {}
        for item in reversed(listing.values()):
            name = safe_name(item.name)
            while name in tools:
                name = safe_name(f"{name}_")
            tools[name] = MCPTool(self, item, name)
        return tuple(tools.values())


class MCPTool:
    """A tool of an MCP server."""

    def __init__(self, server: MCPServer, item: Any, name: str) -> None:
        self.server = server
        self.toolset: MCPServer | MCPServers = server
        """The toolset that lists the tool. See `Tool`."""
        self.remote_name: str = item.name
        """The name of the tool on the server."""
        effect = server.effects.get(item.name) or effect_of(item.annotations)
        if item.name not in server.effects and effect is Effect.ONCE and server.has_run_files:
            effect = Effect.IDEMPOTENT  # what a call changes is undone before it is made again
        spec = ToolSpec(
            name=name,
            description=item.description or item.title or "",
            parameters=item.input_schema,
            effect=effect,
            timeout_seconds=server.timeout_seconds,
            output_schema=item.output_schema,
            may_differ=server.may_differ.get(item.name, ()),
            is_concurrent=not server.has_run_files,
        )
        self.spec = let_in_tool(spec)
        self.is_output_valid = make_output_check(item.output_schema)
        checker = ArgumentChecker(item.input_schema)
        try:
            checker.find_fault({})
        except Exception:
            # The server checks arguments against a schema that cannot be read here.
            told = "the arguments must be one JSON object"
            self._find_fault: Callable[[Json], str | None] = lambda given: (
                None if isinstance(given, dict) else told
            )
        else:
            self._find_fault = checker.find_fault

    def joined(self, toolset: "MCPServers", name: str) -> "MCPTool":
        """Return the same tool as one of `toolset`, with the name that it has there."""
        other = object.__new__(MCPTool)
        other.__dict__.update(self.__dict__)
        other.toolset, other.spec = toolset, replace(self.spec, name=name)
        return other

    def find_fault(self, arguments: Json) -> str | None:
        return self._find_fault(arguments)

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> ToolOutput:
        """See `Tool.call`. Raises: `ToolError`."""
        return await self.server.call(self, arguments, context)

    def __repr__(self) -> str:
        return f"<tool {self.spec.name!r} of {self.server!r}>"


class MCPServers(_Connected):
    """Several servers as one toolset. A tool name that two of them have becomes `<server>_<tool>`."""

    def __init__(self, servers: Sequence[MCPServer]) -> None:
        """Make a toolset of `servers`. Raises: `ConfigError` if two of them have the same name."""
        self.servers = tuple(servers)
        name, count = (
            Counter(server.name for server in self.servers).most_common(1)[0] if servers else ("", 0)
        )
        if count > 1:
            raise ConfigError(f"two MCP servers are called {name!r}; give each its own name")

    @property
    def part(self) -> PartSpec:
        """The toolset by name and settings, without secrets."""
        return make_part({server.name: server.entry for server in self.servers})

    def check(self) -> None:
        """Check that the commands of the servers are installed. No server is started. Raises: `ConfigError`."""
        for server in self.servers:
            server.target.check_command()

    def tools(self) -> tuple[Tool, ...]:
        """Return the tools of all servers, which are connected in parallel. Raises: `ConfigError`."""
        SESSIONS.run(self.open())
        return self._join()

    async def open(self) -> Self:
        outcomes = await asyncio.gather(*[server.open() for server in self.servers], return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if failures:
            await self.aclose()
            raise failures[0]
        return self

    @property
    def can_change(self) -> bool:
        return any([server.can_change for server in self.servers])

    @property
    def is_outdated(self) -> bool:
        """Whether a server has changed its tools since they were listed for `tools`."""
        return any([server.is_outdated for server in self.servers])

    async def renew(self) -> None:
        """List the tools again that servers have changed."""
        await asyncio.gather(*[server.renew() for server in self.servers])

    async def aclose(self) -> None:
        await asyncio.gather(*[server.aclose() for server in self.servers])

    def leave(self) -> None:
        for server in self.servers:
            server.leave()

    def _join(self) -> tuple[Tool, ...]:
        counts = Counter(tool.spec.name for server in self.servers for tool in server.tools())
        tools: list[Tool] = []
        for server in self.servers:
            for tool in server.tools():
                name = tool.spec.name
                is_clash = counts[name] > 1
                tools.append(tool.joined(self, safe_name(f"{server.name}_{name}") if is_clash else name))
        return tuple(tools)


def _name_of(command: str | None, args: Sequence[str], url: str | None, server: Any) -> str:
    if command is not None:
        return name_of_command([command, *map(str, args)])
    return name_of_url(url) if url is not None else str(getattr(server, "name", None) or "server")


def _choose_transport(name: str, command: str | None, url: str | None, wanted: str | None) -> str:
    if url is None:
        kind = "stdio" if command is not None else "memory"
        if wanted not in (None, kind):
            raise ConfigError(
                f"MCPServer {name!r}: transport is {wanted!r}, but without a url it must be {kind!r}"
            )
        return kind
    if wanted not in (None, "http", "sse"):
        raise ConfigError(
            f"MCPServer {name!r}: transport is {wanted!r}; for a url it must be 'http' or 'sse'"
        )
    return wanted or "http"


def _check_args(items: Any, name: str) -> tuple[str, ...]:
    if isinstance(items, str) or not all(isinstance(item, str) for item in items):
        raise ConfigError(f"MCPServer {name!r}: args must be a list of strings")
    return tuple(items)


def _check_env(env: Mapping[str, str], name: str) -> dict[str, str]:
    for key, value in env.items():
        if not isinstance(value, str):
            raise ConfigError(f"MCPServer {name!r}: the value of {key!r} in env must be a string")
    return dict(env)


def _check_headers(headers: Mapping[str, str], name: str) -> dict[str, str]:
    """Return a copy of `headers`. Raises: `ConfigError`, whose message contains no value."""
    for key, value in headers.items():
        if not _HEADER_NAME.fullmatch(key):
            raise ConfigError(f"MCPServer {name!r}: {key!r} cannot be the name of a header")
        if not isinstance(value, str) or not value.isascii() or not value.isprintable():
            raise ConfigError(
                f"MCPServer {name!r}: the value of the header {key!r} must be a string of printable ASCII; does it "
                "end with a line break?"
            )
    return dict(headers)


def _check_seconds(name: str, option: str, value: object) -> None:
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise ConfigError(f"MCPServer {name!r}: {option} is {value!r}; it must be above 0")
