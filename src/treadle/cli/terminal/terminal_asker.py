"""Questions and approvals that the person at the terminal is asked for."""

import asyncio
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.cli.terminal.format import format_call
from treadle.cli.terminal.output import clean, is_live, shorten, stderr
from treadle.cli.terminal.view import View
from treadle.core.asking import Answer, Answerable, Question
from treadle.core.texts.documents import decode_or
from treadle.core.texts.json_text import decode_json
from treadle.core.types import Effect, Json, ToolCall
from treadle.tools.protocol import ApprovalRequest, Decision
from treadle.tools.schema.answer_schema import find_output_fault

if TYPE_CHECKING:
    from rich.console import Console

_CHOICES = "[y]es, [n]o, [e]dit, [a]lways this tool, [l]ater"
_EFFECTS = {
    Effect.PURE: "it changes nothing",
    Effect.IDEMPOTENT: "running it twice has the same result as running it once",
    Effect.ONCE: "it cannot be undone",
}


class TerminalPerson:
    """The person at the terminal, who decides about calls and answers questions."""

    def __init__(self, view: View | None = None) -> None:
        self.view = view
        """The view that is paused while a question is on the screen."""
        self.keyboard = asyncio.Lock()
        """Held while the person is asked, so that nobody else reads what is typed."""
        self._always: set[str] = set()
        """The tools whose calls the person always approves."""

    async def answer(self, question: Question) -> Answerable | None:
        """See `Asker`. An empty line, Esc and the end of the input mean that the answer comes later."""
        async with self.keyboard:
            with self._alone():
                return await _ask(question)

    async def approve(self, request: ApprovalRequest) -> Decision | None:
        """See `Approver`. The end of the input means that the decision is made later."""
        call = request.call
        async with self.keyboard:
            if call.name in self._always:
                return Decision(True)
            with self._alone():
                return await self._decide(request)

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Pause the view, so that what happens meanwhile is shown after what the person is asked."""
        view = View() if self.view is None else self.view
        view.close()
        view.hold()
        try:
            yield
        finally:
            view.release()

    async def _decide(self, request: ApprovalRequest) -> Decision | None:
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
                edited = await _edit(call)
                if edited is not None:
                    return Decision(True, arguments=edited)


async def _edit(call: ToolCall) -> str | None:
    """Return the arguments that the person typed; `None` if the line was empty."""
    stderr().print(f"  arguments: {clean(call.arguments)}", style="dim", soft_wrap=True)
    while text := await read_line("  new arguments as JSON (Enter keeps them): "):
        try:
            if isinstance(decode_json(text), dict):
                return text
            problem = "the arguments must be a JSON object"
        except msgspec.DecodeError as error:
            problem = str(error)
        stderr().print(f"  {clean(problem)}", style="red", soft_wrap=True)
    return None


async def read_line(prompt: str) -> str | None:
    """Return a line that a person typed; `None` after Esc or the input's end. If cancelled, read nothing."""
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


_LATER = "Enter or Esc answers later"
_MAX_CHARS = 1000
"""How long a name or a description of a question may be in one line."""


async def _ask(question: Question) -> Answerable | None:
    console = stderr()
    if question.fault is None:
        console.print()
        print_question(question)
    else:
        console.print(f"  {clean(question.fault)}", style="red", soft_wrap=True)
    if question.schema is not None:
        return await _fill(question.schema)
    kinds = [
        f"a number from 1 to {len(question.options)}" if question.options else "",
        "a text" if question.allows_text else "",
    ]
    return await read_line(f"  {' or '.join([kind for kind in kinds if kind])}; {_LATER}: ") or None


def find_person(view: View | None = None) -> TerminalPerson | None:
    """Return the person at the terminal, or `None` if standard input is not a terminal."""
    return TerminalPerson(view) if sys.stdin.isatty() else None


def print_question(question: Question, console: "Console | None" = None) -> None:
    """Print a question with its options, or the fields of its form."""
    console = console or stderr()
    # A server may have written the question: no line of it looks like one of Treadle's.
    text = clean(question.text).replace("\n", "\n  │ ")
    console.print(f"? {text}", style="bold yellow", soft_wrap=True)
    for number, option in enumerate(question.options, 1):
        about = f"  {shorten(option.description, _MAX_CHARS)}" if option.description else ""
        console.print(f"  {number}. {shorten(option.label, _MAX_CHARS)}{about}", soft_wrap=True)
    for name, field in _fields(question.schema or {}).items():
        need = "" if name in _required(question.schema) else " (optional)"
        about = f"  {shorten(_describe(field), _MAX_CHARS)}" if _describe(field) else ""
        kind = shorten(_kind(field), _MAX_CHARS)
        console.print(f"  {shorten(name, _MAX_CHARS)}: {kind}{need}{about}", soft_wrap=True)


async def _fill(schema: Mapping[str, Json]) -> Answerable | None:
    """Return the form as the person fills it in; `None` if it is left for later."""
    said = await read_line(f"  [f]ill in, [d]ecline; {_LATER}: ")
    if said and said.lower() in ("d", "decline"):
        return Answer(is_declined=True)
    if not said or said.lower() not in ("f", "fill in", "y", "yes"):
        return None
    form: dict[str, Json] = {}
    for name, field in _fields(schema).items():
        if not await _fill_field(form, name, field, is_required=name in _required(schema)):
            return None
    return form


async def _fill_field(
    form: dict[str, Json], name: str, field: Mapping[str, Json], *, is_required: bool
) -> bool:
    """Read one field until it fits; return False if the person stops."""
    default = field.get("default")
    hint = f" (Enter for {default!r})" if "default" in field else "" if is_required else " (Enter for none)"
    while (said := await read_line(f"  {clean(name)}: {_kind(field)}{clean(hint)}: ")) is not None:
        if not said and "default" in field:
            form[name] = default
            return True
        if not said and not is_required:
            return True
        value = _convert(said, field)
        fault = find_output_fault({"type": "object", "properties": {name: dict(field)}}, {name: value})
        if fault is None and said:
            form[name] = value
            return True
        problem = fault or f"{name} is needed"
        stderr().print(f"  {clean(problem)}", style="red", soft_wrap=True)
    return False


def _convert(said: str, field: Mapping[str, Json]) -> Json:
    """Return what a person typed as a value of the field's type, or as a text if it is not one."""
    kind = field.get("type")
    if kind == "boolean":
        return {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}.get(
            said.lower(), said
        )
    if kind == "array":
        return [part.strip() for part in said.split(",")]
    if kind == "string":
        return said
    return decode_or(said, said)


def _fields(schema: Mapping[str, Json]) -> Mapping[str, dict[str, Json]]:
    found = schema.get("properties")
    return found if isinstance(found, dict) else {}


def _required(schema: Mapping[str, Json] | None) -> tuple[str, ...]:
    found = (schema or {}).get("required")
    return tuple(found) if isinstance(found, list) else ()


def _describe(field: Mapping[str, Json]) -> str:
    return str(field.get("description") or field.get("title") or "")


def _kind(field: Mapping[str, Json]) -> str:
    """Return what a field takes, in words."""
    items = field.get("items")
    inner = items if isinstance(items, dict) else field
    choices = inner.get("enum")
    if not isinstance(choices, list):
        offered = inner.get("oneOf") or inner.get("anyOf")
        choices = [item.get("const") for item in offered] if isinstance(offered, list) else None
    if choices:
        several = "some of " if field.get("type") == "array" else ""
        return clean(several + ", ".join(map(str, choices)))
    if field.get("type") == "boolean":
        return "yes or no"
    return clean(" ".join(map(str, filter(None, (field.get("format"), field.get("type"))))))
