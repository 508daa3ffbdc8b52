"""The approver that asks the person at the terminal whether to run a tool call, and how a line is read."""

import asyncio
import signal
import sys
from typing import Any

import msgspec

from treadle.cli.terminal.format import format_call
from treadle.cli.terminal.output import clean, is_live, stderr
from treadle.cli.terminal.view import View
from treadle.core.types import Effect, ToolCall
from treadle.tools.protocol import ApprovalRequest, Decision

_CHOICES = "[y]es, [n]o, [e]dit, [a]lways this tool, [l]ater"
_EFFECTS = {
    Effect.PURE: "it changes nothing",
    Effect.IDEMPOTENT: "running it twice has the same result as running it once",
    Effect.ONCE: "it cannot be undone",
}


class TerminalApprover:
    """An approver that shows each call, and reads the decision from the terminal."""

    def __init__(self, view: View | None = None) -> None:
        self.view = view
        """The view that is paused while a question is on the screen."""
        self._always: set[str] = set()
        self.keyboard = asyncio.Lock()
        """Held while a person is asked, so that nobody else reads what is typed."""

    async def __call__(self, request: ApprovalRequest) -> Decision | None:
        """See `Approver`. The end of the input means that the decision is made later."""
        call = request.call
        async with self.keyboard:
            if call.name in self._always:
                return Decision(True)
            if self.view is not None:
                self.view.close()
            return await self._ask(request)

    async def _ask(self, request: ApprovalRequest) -> Decision | None:
        call, console = request.call, stderr()
        console.print(f"\n{format_call(call, 2000)}", style="bold", soft_wrap=True)
        console.print(f"  run this call? {_EFFECTS[request.spec.effect]}", style="dim", soft_wrap=True)
        while True:
            said = await read_line(f"  {_CHOICES}: ")
            if said is None or said in ("l", "later"):
                return None
            if said in ("y", "yes"):
                return Decision(True)
            if said in ("a", "always"):
                self._always.add(call.name)
                return Decision(True)
            if said in ("n", "no"):
                reason = await read_line("  reason (Enter for none): ")
                return Decision(False, reason or None)
            if said in ("e", "edit"):
                edited = await self._edit(call)
                if edited is not None:
                    return Decision(True, arguments=edited)

    async def _edit(self, call: ToolCall) -> str | None:
        """Return the arguments that the person typed; `None` if the line was empty."""
        stderr().print(f"  arguments: {clean(call.arguments)}", style="dim", soft_wrap=True)
        while text := await read_line("  new arguments as JSON (Enter keeps them): "):
            try:
                if isinstance(msgspec.json.decode(text), dict):
                    return text
                problem = "the arguments must be a JSON object"
            except msgspec.DecodeError as error:
                problem = str(error)
            stderr().print(f"  {clean(problem)}", style="red", soft_wrap=True)
        return None


async def read_line(prompt: str) -> str | None:
    """Return a line that a person typed; `None` after Esc and at the end of the input. A cancelled call reads
    nothing."""
    if not is_live():
        line = await _read_plain_line(prompt)
        return None if line is None or line.startswith("\x1b") else line
    from prompt_toolkit import PromptSession
    from prompt_toolkit.key_binding import KeyBindings

    keys = KeyBindings()

    @keys.add("escape", eager=True)
    def leave(event: Any) -> None:
        event.app.exit(result=None)

    session: PromptSession[str | None] = PromptSession(key_bindings=keys)
    try:
        said = await session.prompt_async(prompt, handle_sigint=False)
    except EOFError:
        return None
    except KeyboardInterrupt:
        # The terminal passed the key on as text. Whoever waits for the signal stops the run.
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()
        raise
    return None if said is None else said.strip()


async def _read_plain_line(prompt: str) -> str | None:
    stderr().print(prompt, end="")
    loop = asyncio.get_running_loop()
    is_ready = asyncio.Event()
    loop.add_reader(sys.stdin.fileno(), is_ready.set)
    try:
        await is_ready.wait()
    except asyncio.CancelledError:
        stderr().print()
        raise
    finally:
        loop.remove_reader(sys.stdin.fileno())
    line = sys.stdin.readline()
    return line.strip() if line else None


def make_approver(view: View | None = None) -> TerminalApprover | None:
    """Return the approver that asks on the terminal, or `None` if standard input is not a terminal."""
    return TerminalApprover(view) if sys.stdin.isatty() else None
