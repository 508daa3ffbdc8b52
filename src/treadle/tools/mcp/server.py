"""MCP servers as toolsets."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Self

from msgspec.structs import replace

from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Effect, Json, ToolSpec
from treadle.tools.mcp import worker
from treadle.tools.mcp.connection import (
    Connection,
    Link,
    Target,
    UnreachableError,
    describe,
    first_leaf,
    is_closed,
)
from treadle.tools.mcp.results import effect_of, to_output
from treadle.tools.protocol import Tool, ToolContext, ToolOutput
from treadle.tools.validation import ArgumentChecker

KEY = "treadle/idempotency_key"
"""Under which a request's `_meta` holds the call's idempotency key."""
MAX_NAME_CHARS = 64

Progress = Callable[[float, float | None, str | None], Awaitable[None]]


class MCPServer:
    """One server: started as a command, reached by URL (Streamable HTTP), or an SDK server in this process.

    It is connected to when its tools are first asked for, and again whenever it has ended. By default one session
    serves all runs; with `per_run` each run has a session, and for a command a process, of its own.
    """

    def __init__(
        self,
        command: str | None = None,
        *,
        url: str | None = None,
        server: Any = None,
        args: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        cwd: str | None = None,
        name: str | None = None,
        per_run: bool = False,
        timeout_seconds: float | None = 120.0,
        start_timeout_seconds: float = 30.0,
        effects: Mapping[str, Effect | str] | None = None,
        may_differ: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`effects` says of tools, by the server's name for them, what the server does not or says wrongly, and
        `may_differ` what of their results may be otherwise the next time (see `ToolSpec.may_differ`).

        `timeout_seconds` is of one call. A command's environment is a small part of this process's (PATH, HOME and
        the like) and `env`. Raises: `ConfigError` unless exactly one of `command`, `url` and `server` is given.
        """
        if sum(item is not None for item in (command, url, server)) != 1:
            raise ConfigError("an MCP server needs either a command, a url or a server in this process")
        for option, seconds in (
            ("timeout_seconds", timeout_seconds),
            ("start_timeout_seconds", start_timeout_seconds),
        ):
            if seconds is not None and not (isinstance(seconds, int | float) and seconds > 0):
                raise ConfigError(f"MCPServer: {option} is {seconds!r}; it must be above 0")
        self.name = name or getattr(server, "name", None) or command or "server"
        self.target = Target(
            self.name,
            command,
            tuple(args),
            dict(env or {}),
            cwd,
            url,
            dict(headers or {}),
            server,
            start_timeout_seconds,
        )
        self.timeout_seconds = timeout_seconds
        self.is_per_run = per_run
        self._effects = {key: Effect(value) for key, value in (effects or {}).items()}
        self.may_differ = {key: tuple(value) for key, value in (may_differ or {}).items()}
        self._link = Link(self.target)
        self._tools: tuple[MCPTool, ...] | None = None

    def tools(self) -> "tuple[MCPTool, ...]":
        """The server's tools; the first time it is connected to, which blocks. Raises: `ConfigError`."""
        if self._tools is None:
            try:
                self._tools = worker.submit(self._list()).result()
            except UnreachableError as error:
                raise ConfigError(str(error)) from error
        return self._tools

    async def open(self) -> Self:
        """Connect without blocking, so that `tools` need not. Raises: `ConfigError`."""
        if self._tools is None:
            try:
                self._tools = await worker.hop(self._list())
            except UnreachableError as error:
                raise ConfigError(str(error)) from error
        return self

    def close(self) -> None:
        """End the shared session and its process; a later call starts them again. Idempotent."""
        worker.submit(self._link.close()).result()

    async def aclose(self) -> None:
        """`close`, without blocking."""
        await worker.hop(self._link.close())

    def __enter__(self) -> Self:
        self.tools()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __repr__(self) -> str:
        return f"<MCP server {self.name!r}>"

    async def call(self, tool: "MCPTool", arguments: dict[str, Json], context: ToolContext) -> ToolOutput:
        """Call one of the server's tools for a run."""
        link = self._link
        if self.is_per_run:
            link = await context.scope.get((id(self), "mcp"), self._own_link)

        async def report(done: float, total: float | None, message: str | None) -> None:
            amount = f"{done:g}" if total is None else f"{done:g}/{total:g}"
            context.progress(f"{amount} {message}" if message else amount)

        # A server that nobody listens to need not report.
        progress = report if context.is_heard else None
        return await worker.hop(_call(link, tool, arguments, context.idempotency_key, progress))

    async def _list(self) -> "tuple[MCPTool, ...]":
        await self._link.get()
        listed = self._link.listing
        tools: dict[str, MCPTool] = {}
        for item in listed:
            name = _safe_name(item.name)
            while name in tools:
                name = f"{name[: MAX_NAME_CHARS - 1]}_"
            tools[name] = MCPTool(self, item, name, self._effects)
        unknown = (self._effects.keys() | self.may_differ.keys()) - {item.name for item in listed}
        if unknown:
            known = ", ".join(item.name for item in listed) or "none"
            raise UnreachableError(
                f"the MCP server {self.name!r} has no tool {min(unknown)!r}; its tools are: {known}"
            )
        if self.is_per_run:
            # It was started to be asked for its tools; each run has its own.
            await self._link.close()
        return tuple(tools.values())

    @contextlib.asynccontextmanager
    async def _own_link(self) -> AsyncIterator[Link]:
        link = Link(self.target)
        try:
            yield link
        finally:
            await worker.hop(link.close())


class MCPTool:
    """A tool of a server."""

    def __init__(self, server: MCPServer, item: Any, name: str, effects: Mapping[str, Effect]) -> None:
        self.server = server
        self.remote_name: str = item.name
        """As the server knows it."""
        schema = item.input_schema or {"type": "object"}
        self.spec = ToolSpec(
            name=name,
            description=item.description or item.title or "",
            parameters=schema,
            effect=effects.get(item.name) or effect_of(item.annotations),
            timeout_seconds=server.timeout_seconds,
            output_schema=item.output_schema,
            may_differ=server.may_differ.get(item.name, ()),
        )
        checker = ArgumentChecker(schema)
        try:
            checker.find_fault({})
        except ConfigError:
            # What this cannot read, the server checks.
            self._find_fault: Callable[[Json], str | None] = _need_object
        else:
            self._find_fault = checker.find_fault

    def renamed(self, name: str) -> "MCPTool":
        """The same tool under another name."""
        other = object.__new__(MCPTool)
        other.__dict__.update(self.__dict__)
        other.spec = replace(self.spec, name=name)
        return other

    def find_fault(self, arguments: Json) -> str | None:
        """See `Tool.find_fault`."""
        return self._find_fault(arguments)

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> ToolOutput:
        """See `Tool.call`. Raises: `ToolError`."""
        return await self.server.call(self, arguments, context)

    def __repr__(self) -> str:
        return f"<tool {self.spec.name!r} of {self.server!r}>"


class MCPServers:
    """Several servers as one toolset; `<server>_<tool>` is the name of a tool that two of them have."""

    def __init__(self, servers: Sequence[MCPServer]) -> None:
        self.servers = tuple(servers)

    def tools(self) -> tuple[Tool, ...]:
        """The tools of all, connected to side by side. Raises: `ConfigError`."""
        worker.submit(_open_all(self.servers)).result()
        return self._join()

    async def open(self) -> Self:
        """Connect to all without blocking. Raises: `ConfigError`."""
        await worker.hop(_open_all(self.servers))
        return self

    def close(self) -> None:
        """End all sessions."""
        for server in self.servers:
            server.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *_: object) -> None:
        for server in self.servers:
            await server.aclose()

    def _join(self) -> tuple[Tool, ...]:
        names = [tool.spec.name for server in self.servers for tool in server.tools()]
        tools: list[Tool] = []
        for server in self.servers:
            for tool in server.tools():
                is_clash = names.count(tool.spec.name) > 1
                full = _safe_name(f"{server.name}_{tool.spec.name}")
                tools.append(tool.renamed(full) if is_clash else tool)
        return tuple(tools)


async def _open_all(servers: Sequence[MCPServer]) -> None:
    """On the worker thread, where opening one is no hop."""
    await asyncio.gather(*[server.open() for server in servers])


async def _call(
    link: Link, tool: MCPTool, arguments: dict[str, Json], key: str, progress: Progress | None
) -> ToolOutput:
    """One call, made once more where that does no harm and the session ended under it."""
    is_again = False
    while True:
        try:
            connection = await link.get()
            if link.is_listing_old:
                await link.list_again(connection)
        except UnreachableError as error:
            raise ToolError(str(error)) from error
        _check_listing(link, tool)
        try:
            result = await connection.client.call_tool(
                tool.remote_name, arguments, progress_callback=progress, meta={KEY: key}
            )
        except Exception as error:
            leaf = first_leaf(error)
            if not (is_closed(leaf) or connection.is_over):
                raise await _refused(link, connection, tool, leaf) from error
            await link.drop(connection)
            if tool.spec.effect is Effect.ONCE or is_again:
                raise ToolError(_explain_end(link, tool)) from error
            is_again = True
            continue
        output = to_output(result)
        if output.is_error and "unknown tool" in output.content.lower():
            await _list_and_check(link, connection, tool)
        return output


def _check_listing(link: Link, tool: MCPTool) -> None:
    """Raises: `ToolError` if the server has the tool no more."""
    names = [item.name for item in link.listing]
    if tool.remote_name not in names:
        raise ToolError(
            f"the MCP server {link.target.name!r} has no tool {tool.remote_name!r} any more; now it has: "
            f"{', '.join(names) or 'none'}"
        )


async def _list_and_check(link: Link, connection: Connection, tool: MCPTool) -> None:
    try:
        await link.list_again(connection)
    except UnreachableError as error:
        raise ToolError(str(error)) from error
    _check_listing(link, tool)


async def _refused(link: Link, connection: Connection, tool: MCPTool, error: BaseException) -> ToolError:
    """What to tell the model of a request that was answered with an error, or with nonsense."""
    if getattr(error, "code", None) in (-32601, -32602):
        try:
            await _list_and_check(link, connection, tool)
        except ToolError as gone:
            return gone
    text = link.target.hide(describe(error))
    return ToolError(f"{tool.remote_name} of the MCP server {link.target.name!r} failed: {text}")


def _explain_end(link: Link, tool: MCPTool) -> str:
    return (
        f"the MCP server {link.target.name!r} ended while {tool.remote_name!r} was running, so its outcome is "
        "unknown: it may or may not have taken effect. Check before you call it again; the server is started anew."
    )


def _need_object(arguments: Json) -> str | None:
    return None if isinstance(arguments, dict) else "the arguments must be one JSON object"


def _safe_name(name: str) -> str:
    """A name that providers take."""
    return re.sub(r"[^a-zA-Z0-9_-]", "_", name)[:MAX_NAME_CHARS] or "tool"
