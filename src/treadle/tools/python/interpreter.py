"""The tool `python`.

Code runs in Monty, an interpreter in a process of its own without files, network or environment. The operations
that the code asks for are performed here, with the run's files and the run's other tools. Variables are kept from
one call of a run to the next, as part of the snapshot.
"""

import ast
import contextlib
import hashlib
import importlib.util
import keyword
import re
from collections.abc import AsyncIterator
from typing import Any

from msgspec.structs import replace

from treadle.core.errors import ConfigError, NoResultError, ToolError
from treadle.core.registry import require
from treadle.core.spec import PartSpec
from treadle.core.types import Json
from treadle.tools.context import ToolContext
from treadle.tools.protocol import ToolOutput
from treadle.tools.python import workers
from treadle.tools.schema.validation import ArgumentChecker, own_spec
from treadle.tools.toolset_parts import settings_of

STATE = "python"
"""The name under which the sandbox stores the session."""
MAX_CODE_CHARS = 1_000_000
MAX_SHOWN_CHARS = 10_000
"""In longer code the last expression is not rewritten to show its value with `repr`."""


class Python:
    """A tool that runs Python code. One instance serves any number of runs."""

    def __init__(
        self,
        *,
        name: str = "python",
        max_seconds: float = 10.0,
        max_memory_bytes: int = 256 * 1024 * 1024,
        max_recursion: int = 500,
        max_output_bytes: int = 1_000_000,
        max_state_bytes: int = 8 * 1024 * 1024,
        max_files_bytes: int = 64 * 1024 * 1024,
        max_tool_calls: int = 1000,
    ) -> None:
        """Make a tool. `max_seconds` limits the working time of one call, without the time that it waits.

        `max_output_bytes` and `max_tool_calls` also limit one call; the other limits are for the whole run.
        """
        self.part = PartSpec(name="python", settings=settings_of(Python, locals()))
        for option, value in (("max_seconds", max_seconds), ("max_memory_bytes", max_memory_bytes)):
            if value <= 0:
                raise ConfigError(f"Python: {option} is {value!r}; it must be above 0")
        self.spec = replace(own_spec("python"), name=name)
        self.find_fault = ArgumentChecker(self.spec.parameters).find_fault
        self._limits = {
            "max_feed_duration_secs": max_seconds,
            "max_memory": max_memory_bytes,
            "max_recursion_depth": max_recursion,
            "max_suspensions": 1_000_000,
            "max_total_sleep_secs": 60.0,
        }
        self._max_output_bytes = max_output_bytes
        self._max_state_bytes = max_state_bytes
        self._max_files_bytes = max_files_bytes
        self._max_tool_calls = max_tool_calls

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> ToolOutput:
        """See `Tool.call`. Raises: `ToolError`; `ConfigError` if Monty is not installed."""
        monty = require("pydantic_monty", "python")
        code = arguments["code"]
        if len(code) > MAX_CODE_CHARS:
            raise ToolError(f"the code has {len(code):,} characters; at most {MAX_CODE_CHARS:,} are taken")
        state = context.sandbox.read_state(STATE) if context.sandbox is not None else None
        key = (context.run_id, id(context.scope))
        await context.scope.get((id(self), "python"), lambda: _forgetting(key))
        seed = int.from_bytes(hashlib.sha256(context.idempotency_key.encode()).digest()[:8], "big")
        options = {
            "limits": self._limits,
            "os_policy": {"random_start": {"seed": seed}, "sleep_system_max": 10.0},
        }
        try:
            session = await workers.take(key, state, options)
        except monty.MontyError as error:
            raise NoResultError(f"the state of Python could not be restored: {error}") from error
        run = _Run(self, monty, session, context)
        try:
            output = await run.run(code)
            kept = await _dump(session) if run.is_whole else None
        except BaseException:
            await workers.drop(session)
            raise
        if kept is not None:
            return await self._put_away(key, session, kept, output, context)
        await workers.drop(session)
        note = "[the variables are as they were before this call]"
        return ToolOutput(f"{output.content}\n{note}".strip(), is_error=True)

    async def _put_away(
        self, key: tuple[str, int], session: Any, state: bytes, output: ToolOutput, context: ToolContext
    ) -> ToolOutput:
        if len(state) > self._max_state_bytes:
            await workers.drop(session)
            text = (
                f"[the variables take {len(state):,} bytes, over the limit of {self._max_state_bytes:,}: they are "
                "as they were before this call. Write large data to files]"
            )
            return ToolOutput(f"{output.content}\n{text}".strip(), is_error=True)
        packed = workers.pack(state)
        if context.sandbox is not None:
            context.sandbox.write_state(STATE, packed)
        await workers.keep(key, session, packed)
        return output

    def __repr__(self) -> str:
        return f"<tool {self.spec.name!r}>"


class _Run:
    """One call. It runs the code and answers its requests to the host one by one."""

    def __init__(self, tool: Python, monty: Any, session: Any, context: ToolContext) -> None:
        from treadle.tools.python.filesystem import SandboxFiles

        self._tool = tool
        self._monty = monty
        self._session = session
        self._context = context
        self._files = SandboxFiles(context.sandbox, tool._max_files_bytes)
        self._printed = monty.CollectString(max_bytes=tool._max_output_bytes)
        self._functions = {
            _identifier(spec.name): spec for spec in context.tools if spec.name != tool.spec.name
        }
        self._calls = 0
        self._futures: dict[int, dict[str, Any]] = {}
        self.is_whole = True
        """True if the session is intact, so that its state can be stored."""

    async def run(self, code: str) -> ToolOutput:
        monty = self._monty
        try:
            shown_by_code = show_last(code)
            step = await self._session.feed_start(shown_by_code or code, print_callback=self._printed)
            while not isinstance(step, monty.MontyComplete):
                step = await self._answer(step)
        except monty.MontySyntaxError as error:
            return self._fail(error.display())
        except monty.MontyRuntimeError as error:
            return self._explain(error)
        except monty.MontyCrashedError:
            self.is_whole = False
            return self._fail("[Python ended unexpectedly; its variables are as they were before this call]")
        except monty.MontyConversionError as error:
            return self._fail(f"[the value of the last expression cannot be shown: {error}]")
        shown = "" if step.output is None else step.output if shown_by_code else repr(step.output)
        if len(shown) > (limit := self._tool._max_output_bytes):
            shown = f"{shown[:limit]}… ({len(shown):,} characters)"
        printed = self._printed.output
        if shown and printed and not printed.endswith("\n"):
            printed += "\n"
        return ToolOutput(printed + shown)

    async def _answer(self, step: Any) -> Any:
        """Answer one request of the code. Return the next request or the result."""
        monty = self._monty
        if isinstance(step, monty.AsyncNameLookupSnapshot):
            return await self._look_up(step)
        if isinstance(step, monty.AsyncFutureSnapshot):
            return await step.resume({number: self._futures.pop(number) for number in step.pending_call_ids})
        if step.is_os_function:
            return await self._ask_host(step)
        result = await self._call_tool(step.function_name, step.args, step.kwargs)
        if step.allow_eager_await:
            # The code awaits it like a coroutine function.
            self._futures[step.call_id] = result
            return await step.resume({"future": ...})
        return await step.resume(result)

    async def _look_up(self, step: Any) -> Any:
        name = step.variable_name
        if step.object_id is None and name in self._functions:

            def function(*args: Any, **kwargs: Any) -> None: ...

            function.__name__ = function.__qualname__ = name
            return await step.resume(value=function)
        return await step.resume()

    async def _ask_host(self, step: Any) -> Any:
        from treadle.tools.python.filesystem import answer

        if step.function_name in ("system.sleep", "system.async_sleep"):
            return await step.resume_auto()
        try:
            value = answer(self._files, step.function_name, step.args, step.kwargs)
        except Exception as error:
            return await step.resume({"exception": error})
        if value is self._monty.NOT_HANDLED:
            return await step.resume_not_handled()
        return await step.resume({"return_value": value})

    async def _call_tool(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        spec = self._functions.get(name)
        if spec is None:
            return {"exception": NameError(f"name {name!r} is not defined")}
        self._calls += 1
        if self._calls > self._tool._max_tool_calls:
            return {
                "exception": RuntimeError(f"more than {self._tool._max_tool_calls} tool calls in one call")
            }
        names = list(spec.parameters.get("properties", {}))
        if len(args) > len(names):
            return {
                "exception": TypeError(f"{name}() takes {len(names)} arguments but {len(args)} were given")
            }
        given = dict(zip(names, args, strict=False))
        if twice := given.keys() & kwargs.keys():
            return {"exception": TypeError(f"{name}() got multiple values for argument {min(twice)!r}")}
        try:
            output = await self._context.call_tool(spec.name, given | kwargs)
        except (ToolError, TypeError) as error:
            return {"exception": RuntimeError(str(error))}
        if output.is_error:
            return {"exception": RuntimeError(output.content)}
        return {"return_value": output.content if output.structured is None else output.structured}

    def _explain(self, error: Any) -> ToolOutput:
        text = error.display("traceback")
        cause = error.exception()
        if isinstance(cause, TimeoutError | MemoryError) and "limit exceeded" in str(cause):
            # Code that was stopped half-way may have left anything in its variables.
            self.is_whole = False
            text += "\n[stopped]"
        elif isinstance(cause, ModuleNotFoundError):
            text += "\n[this Python has only a part of the standard library, and no other packages]"
        return self._fail(text)

    def _fail(self, text: str) -> ToolOutput:
        printed = self._printed.output
        if printed and not printed.endswith("\n"):
            printed += "\n"
        return ToolOutput(printed + text, is_error=True)


async def _dump(session: Any) -> bytes | None:
    """Return the session's state, or `None` if its worker has ended."""
    try:
        state: bytes = await session.dump()
    except RuntimeError:
        return None
    return state


@contextlib.asynccontextmanager
async def _forgetting(key: tuple[str, int]) -> AsyncIterator[None]:
    """Release the run's worker on exit."""
    try:
        yield
    finally:
        await workers.forget(key)


def show_last(code: str) -> str | None:
    """Return `code` that ends in an expression, changed to keep its value in `_` and to show its `repr`.

    Return `None` if `code` does not end in an expression or cannot be parsed here. Line numbers stay the same.
    """
    if len(code) > MAX_SHOWN_CHARS or "\r" in code or "\f" in code:
        return None
    try:
        body = ast.parse(code).body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None
    if not body or not isinstance(body[-1], ast.Expr):
        return None
    last = body[-1].value
    if last.end_lineno is None or last.end_col_offset is None:
        return None
    lines = [line.encode() for line in code.split("\n")]
    end = lines[last.end_lineno - 1]
    lines[last.end_lineno - 1] = end[: last.end_col_offset] + b")" + end[last.end_col_offset :]
    begin = lines[last.lineno - 1]
    lines[last.lineno - 1] = begin[: last.col_offset] + b"_ = (" + begin[last.col_offset :]
    return b"\n".join(lines).decode() + "\nNone if _ is None else repr(_)"


def _identifier(name: str) -> str:
    """Return the name under which code can call a tool."""
    made = re.sub(r"\W", "_", name)
    return f"_{made}" if made[:1].isdigit() or keyword.iskeyword(made) else made


python = Python()


def make_python(**settings: Any) -> Python:
    """Return the tool with the name `python`. Raises: `ConfigError` if Monty is not installed."""
    if importlib.util.find_spec("pydantic_monty") is None:
        require("pydantic_monty", "python")
    return Python(**settings) if settings else python
