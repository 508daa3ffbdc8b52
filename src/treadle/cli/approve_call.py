"""What `treadle approve` does: finds the call, records the decision, goes on with the run."""

import difflib

import msgspec

from treadle.agent.run import Run
from treadle.cli.terminal.ask import make_approver
from treadle.cli.terminal.drive import drive
from treadle.cli.terminal.format import format_call
from treadle.cli.terminal.output import clean, print_lines, print_note, stdout
from treadle.cli.terminal.resuming import Resuming
from treadle.cli.terminal.setup import find_run
from treadle.cli.terminal.view import make_view
from treadle.core.errors import ConfigError
from treadle.core.state import fold
from treadle.core.types import ToolCall
from treadle.journal.protocol import Journal
from treadle.tools.protocol import Decision


def read_decision(text: str, arguments: str | None, reason: str | None) -> Decision:
    """The decision as it was written. Raises: `ConfigError`."""
    word = text.lower()
    if word not in ("yes", "no", "edit"):
        raise ConfigError(f"{text!r} is no decision; say yes, no or edit")
    if (word == "edit") is (arguments is None):
        raise ConfigError(
            "edit needs the arguments to run the call with, as JSON"
            if arguments is None
            else f"arguments come with edit, not with {word}"
        )
    if reason is not None and word != "no":
        raise ConfigError(f"--reason comes with no, not with {word}")
    return Decision(word != "no", reason, arguments)


def list_waiting(journal: Journal, text: str, *, is_json: bool) -> int:
    """Print the calls that wait for a decision; 0 if there is one."""
    run_id = find_run(journal, text)
    waiting = _waiting(journal, run_id)
    if is_json:
        print_lines([msgspec.json.encode(call) for call in waiting.values()])
    elif not waiting:
        print_note(f"run {run_id} waits for no decision")
    for call in () if is_json else waiting.values():
        stdout().print(f"{clean(call.call_id)}  {format_call(call, 2000)}", soft_wrap=True)
    return 0 if waiting else 1


def approve_call(
    resuming: Resuming, text: str, call_text: str, decision: Decision, *, is_json: bool, is_quiet: bool
) -> int:
    """Decide, and go on with the run; the exit code."""
    run_id = find_run(resuming.journal, text)
    calls = _find_calls(run_id, _waiting(resuming.journal, run_id), call_text)
    if decision.arguments is not None and len(calls) > 1:
        raise ConfigError("edit is for one call; give its id instead of 'all'")
    agent = resuming.agent_for(run_id)
    view = make_view(is_json=is_json, is_quiet=is_quiet)
    agent.approver = make_approver(view, is_json=is_json)
    approvals = dict.fromkeys(calls, decision)
    return drive(
        lambda emit: agent.resume(run_id, approvals=approvals, on_event=emit), view, run_id, resuming.path
    )


def _waiting(journal: Journal, run_id: str) -> dict[str, ToolCall]:
    return Run(run_id, fold([event.body for event in journal.read(run_id)]), journal).approvals


def _find_calls(run_id: str, waiting: dict[str, ToolCall], text: str) -> list[str]:
    if not waiting:
        raise ConfigError(
            f"run {run_id!r} waits for no decision; `treadle show {run_id}` says where it stands"
        )
    if text == "all":
        return list(waiting)
    found = [text] if text in waiting else [call_id for call_id in waiting if call_id.startswith(text)]
    if len(found) == 1:
        return found
    near = difflib.get_close_matches(text, waiting, n=1, cutoff=0.4)
    hint = f"; did you mean {near[0]!r}?" if near and not found else ""
    how_many = "several calls begin" if found else "no call begins"
    raise ConfigError(f"{how_many} with {text!r}{hint}; waiting are: {', '.join(waiting)}")
