"""Elicitation: questions that a server asks the user during a call.

Source: Model Context Protocol, revisions 2025-11-25 and 2026-07-28: elicitation, in form mode and in URL mode.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeAlias, TypeVar

from treadle.core.asking import Question
from treadle.core.errors import ConfigError, NotAskedError, ToolError
from treadle.core.registry import require
from treadle.core.texts.masking import Mask
from treadle.core.types import Option
from treadle.tools.context import ToolContext

T = TypeVar("T")

Elicit: TypeAlias = Callable[[Any], Awaitable[Any]]
"""A function that puts a server's question to the user. It takes the SDK's parameters and returns its result."""

ACCEPT = "Accept"
DECLINE = "Decline"


class Elicitations:
    """The questions of a server during one call, passed from the thread of sessions to the event loop of the run,
    which puts them to the user through `ToolContext.ask`."""

    def __init__(self, server: str, context: ToolContext, mask: Mask) -> None:
        self._server = server
        self._context = context
        self._mask = mask
        self._here = asyncio.get_running_loop()
        self._asked: asyncio.Queue[tuple[Any, asyncio.Future[Any]]] = asyncio.Queue()

    async def ask(self, params: Any) -> Any:
        """Return the SDK's result for the parameters of an elicitation. It is called in the thread of sessions."""
        reply: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._here.call_soon_threadsafe(self._asked.put_nowait, (params, reply))
        return await reply

    async def run(self, calling: Coroutine[Any, Any, T]) -> T:
        """Run a call, answer what the server asks meanwhile, and return the call's result.

        If `ToolContext.ask` ends this call, the server's call is cancelled.
        """
        task = asyncio.ensure_future(calling)
        try:
            while True:
                asked = asyncio.ensure_future(self._asked.get())
                try:
                    await asyncio.wait([task, asked], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    asked.cancel()
                if task.done():
                    return await task
                params, reply = asked.result()
                try:
                    result = await self._answer(params)
                except BaseException:
                    task.cancel()
                    _settle(reply, _result("cancel"))
                    raise
                _settle(reply, result)
        finally:
            task.cancel()

    async def _answer(self, params: Any) -> Any:
        message = self._mask.hide(f"{self._server} asks: {params.message}")
        is_form = params.mode == "form"
        if is_form:
            question = Question(message, allows_text=False, schema=params.requested_schema)
        elif not params.url.startswith(("https://", "http://")):
            return _result("decline")
        else:
            options = (Option(ACCEPT, "I open this address"), Option(DECLINE))
            question = Question(f"{message}\n{self._mask.hide(params.url)}", options, allows_text=False)
        try:
            answer = await self._context.ask(question)
        except (NotAskedError, ConfigError):
            return _result("cancel")
        if answer.is_declined or (not is_form and answer.text == DECLINE):
            return _result("decline")
        return _result("accept", answer.value if is_form else None)


async def open_first(name: str, error: Any, elicit: Elicit) -> None:
    """Ask the user to open the addresses that a server names in an error.

    Raises: `ToolError` if the user does not want to.
    """
    types = require("mcp_types", "mcp")
    for item in types.ElicitationRequiredErrorData.model_validate(error.error.data).elicitations:
        if (await elicit(item)).action != "accept":
            raise ToolError(f"{name} was not run: the user did not open the address that it needs")


def _result(action: str, content: Any = None) -> Any:
    return require("mcp_types", "mcp").ElicitResult(action=action, content=content)


def _settle(reply: "asyncio.Future[Any]", result: Any) -> None:
    """Give the worker thread the answer that it waits for."""

    def settle() -> None:
        if not reply.done():
            reply.set_result(result)

    reply.get_loop().call_soon_threadsafe(settle)
