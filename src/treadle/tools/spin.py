"""Tools of a service that speaks DeepFabric's Spin protocol.

Each run has a session on the service. Its id is derived from the run's id, so that a resumed run finds it again.
The run's files are written to the session before the first call. The session ends with the run, not when the run is
paused.
Source: DeepFabric 4.13, Spin tools protocol.
"""

import contextlib
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ToolError
from treadle.core.prompts.foreign import let_in_tool
from treadle.core.registry import name_known
from treadle.core.spec import PartSpec
from treadle.core.texts.json_text import decode_json
from treadle.core.texts.masking import hide_in_url
from treadle.core.types import Effect, Json, ToolSpec
from treadle.http.background import run_blocking
from treadle.http.guarded import GuardedHttp, HttpAnswer, host_of
from treadle.tools.context import Scope, ToolContext
from treadle.tools.protocol import ToolOutput
from treadle.tools.schema.tool_definitions import parse_definitions
from treadle.tools.schema.validation import ArgumentChecker
from treadle.tools.toolset_parts import SECRET, may_hold_secret, settings_of
from treadle.tools.vfs import VfsToolset

STATE = "spin"
_NAMESPACE = uuid.UUID("8b0f4c9a-6a55-4d0b-9f0e-0c3c7be2c5a1")
_JSON = {"content-type": "application/json", "accept": "application/json"}


class Spin:
    """A toolset of one component of a service."""

    def __init__(
        self,
        endpoint: str,
        *,
        component: str | None = "vfs",
        tools: Sequence[ToolSpec | Mapping[str, Json]] | None = None,
        tools_endpoint: str | None = None,
        names: Sequence[str] | None = None,
        tool_execute_path: str | None = None,
        timeout_seconds: float = 30.0,
        has_seed: bool = True,
        max_response_bytes: int = 16_000_000,
    ) -> None:
        """Make a toolset. `tools` are the component's tools; for `vfs` and `mock` they need not be given.
        `tools_endpoint` is a URL that lists them, in any format that `parse_definitions` knows. With `names`, only
        these tools are used.

        With `tool_execute_path`, each call is posted there as name and arguments, without a session. With
        `has_seed`, the run's files are written to the session's `vfs` before the first call. Raises: `ConfigError`
        for an endpoint that is not a URL.
        """
        settings = {"endpoint": endpoint, **(settings_of(Spin, locals()) or {})}
        self.part = PartSpec(name="spin", settings=settings)
        if may_hold_secret(f"spin:{endpoint}"):
            self.part = PartSpec(name="spin:", missing=SECRET)
        self.endpoint = endpoint.rstrip("/")
        self._shown = hide_in_url(self.endpoint)
        self.component = component
        self.execute_path = tool_execute_path
        if component == "mock" and tool_execute_path is None:
            self.execute_path = "/mock/execute"
        self._specs = None if tools is None else msgspec.convert(tools, tuple[ToolSpec, ...])
        self._tools_endpoint = tools_endpoint
        self._names = None if names is None else tuple(names)
        self._has_seed = has_seed and self.execute_path is None
        self._http = GuardedHttp(
            [],
            named_by_user=[host_of(url) for url in (self.endpoint, tools_endpoint) if url is not None],
            allow_private=True,
            timeout_seconds=timeout_seconds,
            max_response_bytes=max_response_bytes,
        )
        self._tools: tuple[SpinTool, ...] | None = None

    def tools(self) -> "tuple[SpinTool, ...]":
        """See `Toolset.tools`. The tools of a mock component are requested, which blocks. Raises: `ConfigError`."""
        if self._tools is None:
            specs = self._specs
            if specs is None and self._tools_endpoint is not None:
                specs = run_blocking(self._list(self._tools_endpoint))
            if specs is None and self.component == "vfs":
                known = {tool.spec.name: tool.spec for tool in VfsToolset().tools()}
                # On a service, nothing is restored before a call is repeated.
                known["delete_file"] = replace(known["delete_file"], effect=Effect.ONCE)
                specs = tuple(known.values())
            if specs is None and self.component == "mock":
                specs = run_blocking(self._list(f"{self.endpoint}/mock/list-tools"))
            if not specs:
                raise ConfigError(
                    f"the tools of the Spin component {self.component!r} at {self._shown} are not known; give "
                    "them with Spin(..., tools=...)"
                )
            known = {spec.name: spec for spec in specs}
            for name in self._names or ():
                if name not in known:
                    hint = name_known(name, known, "it has")
                    raise ConfigError(f"the Spin service at {self._shown} has no tool {name!r}{hint}")
            self._tools = tuple([SpinTool(self, known[name]) for name in self._names or known])
        return self._tools

    async def execute(self, name: str, arguments: dict[str, Json], context: ToolContext) -> ToolOutput:
        """Make one call for a run. Raises: `ToolError`."""
        if self.execute_path is not None:
            body = {"name": name, "arguments": arguments}
            return _read_executed(await self._post(self.execute_path, body), is_custom=True)
        session_id = session_of(context.run_id)
        await context.scope.get((id(self), "spin"), lambda: self._ending(session_id, context.scope))
        if self._has_seed:
            await self._seed(session_id, context)
        route = f"/{self.component}/execute" if self.component else "/execute"
        answer = await self._post(route, {"session_id": session_id, "tool": name, "args": arguments})
        return _read_executed(answer)

    async def end(self, session_id: str) -> bool:
        """Delete a session. The two addresses that services use for this are tried. Return whether it was
        deleted."""
        for path in (f"/session/{session_id}", f"/vfs/session/{session_id}"):
            with contextlib.suppress(ToolError):
                answer = await self._http.request("DELETE", self.endpoint + path)
                if answer.status in (200, 202, 204):
                    return True
        return False

    async def _seed(self, session_id: str, context: ToolContext) -> None:
        """Write the run's files to the session, once in the life of the run."""
        sandbox = context.sandbox
        if sandbox is None or sandbox.read_state(STATE) is not None:
            return
        for path in sandbox.paths():
            try:
                content = sandbox.read(path).decode()
            except UnicodeError:
                raise ToolError(f"the file {path!r} is not text, and Spin sessions hold only texts") from None
            arguments = {"file_path": path, "content": content}
            body = {"session_id": session_id, "tool": "write_file", "args": arguments}
            output = _read_executed(await self._post("/vfs/execute", body))
            if output.is_error:
                raise ToolError(
                    f"the run's file {path!r} could not be written to the session: {output.content}"
                )
        sandbox.write_state(STATE, session_id.encode())

    async def _post(self, path: str, body: Json) -> HttpAnswer:
        return await self._http.request("POST", self.endpoint + path, _JSON, msgspec.json.encode(body))

    async def _list(self, url: str) -> tuple[ToolSpec, ...]:
        try:
            answer = await self._http.request("GET", url)
            value = _decode(answer)
        except ToolError as error:
            raise ConfigError(str(error)) from error
        origin = hide_in_url(url)
        items = value.get("tools") if isinstance(value, dict) else value
        if not items:
            raise ConfigError(f"{origin} lists no tools; post their definitions to /mock/load-schema first")
        return parse_definitions({"tools": items}, origin).tools

    @contextlib.asynccontextmanager
    async def _ending(self, session_id: str, scope: Scope) -> AsyncIterator[None]:
        try:
            yield
        finally:
            if scope.is_run_over:
                await self.end(session_id)


class SpinTool:
    """A tool of a Spin service."""

    def __init__(self, spin: Spin, spec: ToolSpec) -> None:
        self.spec = let_in_tool(spec)
        self.find_fault = ArgumentChecker(spec.parameters).find_fault
        self._spin = spin

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> ToolOutput:
        """See `Tool.call`. Raises: `ToolError`."""
        return await self._spin.execute(self.spec.name, arguments, context)


def spin(text: str = "", **settings: Any) -> Spin:
    """Return the toolset of a service, for names such as `spin:http://host:port/component`.

    Without a path in the URL, the component is `vfs`. Without a text, `settings` are the arguments of `Spin`.
    Raises: `ConfigError`.
    """
    if settings and not text:
        return Spin(**settings)
    path = urlsplit(text).path.strip("/")
    endpoint = text.rstrip("/").removesuffix(f"/{path}") if path else text
    return Spin(endpoint, component=path or "vfs", **settings)


def session_of(run_id: str) -> str:
    """Return the id of a run's session: a UUID derived from the run's id."""
    return str(uuid.uuid5(_NAMESPACE, run_id))


def _read_executed(answer: HttpAnswer, *, is_custom: bool = False) -> ToolOutput:
    """Return the result in an answer: of a session, or of a path of the user's, whose answers say less."""
    value = _decode(answer, is_strict=answer.status == 200)
    fields = value if isinstance(value, dict) else {}
    if answer.status != 200:
        said = fields.get("error") or (None if is_custom else fields.get("result"))
        kind = "" if is_custom else f"{fields.get('error_type', 'HTTPError')}: "
        raise ToolError(f"{kind}{said or f'HTTP {answer.status}'}")
    is_done = fields.get("success") if not is_custom else "result" in fields or None
    if not isinstance(is_done, bool):
        raise ToolError(f"the service did not answer with a result: {answer.body[:200]!r}")
    result: Any = fields.get("result")
    is_text = isinstance(result, str)
    text = result if is_text else msgspec.json.encode(result).decode()
    if is_done:
        return ToolOutput(text, structured=None if is_text else result)
    return ToolOutput(f"{fields.get('error_type') or 'Error'}: {text}", is_error=True)


def _decode(answer: HttpAnswer, *, is_strict: bool = True) -> Any:
    try:
        return decode_json(answer.body)
    except msgspec.DecodeError:
        if is_strict:
            raise ToolError(
                f"the service did not answer with JSON (HTTP {answer.status}): {answer.body[:200]!r}"
            ) from None
        return None
