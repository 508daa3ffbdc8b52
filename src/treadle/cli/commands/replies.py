"""`treadle answer`, `approve`, `cancel` and `label`: tell a run something, whoever drives it."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING, TypeVar

import msgspec

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.jobs.journals import open_existing
from treadle.cli.options import common as o
from treadle.cli.options.agent_options import AgentFlags, PolicyOptions
from treadle.cli.options.selection import read_labels
from treadle.cli.terminal.format import exit_code, format_call
from treadle.cli.terminal.output import find_one, print_json, print_line, print_note, stdout
from treadle.core.asking import Answer, Answerable, Question
from treadle.core.errors import ConfigError
from treadle.core.inbox import Cancel, DecideCall, InboxMessage, Note
from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import ToolCall
from treadle.journal.hub import listen
from treadle.journal.listing import facts_of
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter
from treadle.runs.recording import answer_message, send
from treadle.runs.run import Run
from treadle.runs.statuses import find_run
from treadle.tools.protocol import Decision

if TYPE_CHECKING:
    from treadle.cli.jobs.driving import FollowUp

T = TypeVar("T")


def answer(
    run: str,
    words: list[str] | None = None,
    option: int | None = None,
    is_declined: bool = False,
    is_resumed: bool = False,
    *,
    agent: AgentFlags,
    is_trusted: bool = False,
    journal: str | None = None,
    limits: PolicyOptions,
    shown: o.ViewOptions,
) -> int:
    """Answer a question that a run waits for.

    The answer is recorded, and used when the run is resumed; --resume does that at once. Without an answer, the
    open questions are listed.

    Examples:
        treadle answer last "the second one"
        treadle answer last call_1 --option 2 --resume
    """
    from treadle.cli.jobs.driving import FollowUp, print_replies, resume_shown, write_answer
    from treadle.cli.jobs.resumed_agents import ResumedAgents

    follow_up = FollowUp(journal, agent)
    with open_existing(journal) as opened:
        run_id = find_run(opened, run)
        loaded = Run.load(run_id, opened)
        questions = loaded.open_questions
        if not words and option is None and not is_declined:
            none = f"no question of run {run_id} is open"
            _list_waiting(questions, _show_question, none, is_json=shown.is_json)
            if not shown.is_json:
                print_replies(loaded, follow_up)
            return ExitCode.DONE if questions else ExitCode.MISUSE
        if not questions:
            command = follow_up.write("show", run_id)
            raise ConfigError(f"no question of run {run_id!r} is open; `{command}` shows the run")
        question_id, said = _read_answer(questions, words or [], option, is_declined=is_declined)
        if is_resumed and not _is_driven(opened, run_id):
            agents = ResumedAgents(opened, agent, limits, is_trusted=is_trusted)
            return resume_shown(agents, loaded, shown, follow_up, answers={question_id: said})
        if _give(opened, run_id, [answer_message(loaded.state, question_id, said)], "answer"):
            return ExitCode.DONE
        left = Run.load(run_id, opened)
    if left.questions:
        print_note(
            "answered; more questions are open, answer the next with: " + write_answer(left, follow_up)
        )
        return ExitCode.WAITING
    print_note("answered; continue with: " + follow_up.write("resume", run_id))
    return ExitCode.DONE


def _is_driven(journal: Journal, run_id: str) -> bool:
    return bool(journal.runs(RunFilter(run_ids=[run_id], is_driven=True)))


def _give(journal: Journal, run_id: str, messages: Sequence[InboxMessage], what: str) -> bool:
    """Send messages that a run waits for. Return whether a process drives the run, which takes them in. If nobody
    drives the run, they are taken in here. Raises: `ConfigError` if one of them then means nothing."""
    is_driven = False
    for message in messages:
        sent = execute(send(journal, run_id, message))
        if sent.refused is not None:
            raise ConfigError(sent.refused)
        is_driven = sent.is_driven
    if is_driven:
        print_note(f"sent; the process that drives the run takes the {what} in")
    return is_driven


def _list_waiting(waiting: Mapping[str, T], show: Callable[[T], None], none: str, *, is_json: bool) -> None:
    """Print what a run waits for; `none` if it waits for nothing."""
    if is_json:
        print_json(*waiting.values())
        return
    for item in waiting.values():
        show(item)
    if not waiting:
        print_note(none)


def _show_question(question: Question) -> None:
    print_line(question.question_id, "dim")
    from treadle.cli.terminal.terminal_asker import print_question

    print_question(question, stdout())


def _show_call(call: ToolCall) -> None:
    print_line(f"{call.call_id}  {format_call(call, 2000)}")


def _read_answer(
    questions: dict[str, Question], words: list[str], option: int | None, *, is_declined: bool
) -> tuple[str, Answerable]:
    """Return the id of the question and the answer that the arguments give. Raises: `ConfigError`."""
    has_answer = option is not None or is_declined
    if option is not None and is_declined:
        raise ConfigError("give --option or --decline, not both")
    most = 1 if has_answer else 2
    if len(words) > most:
        what = "a text" if has_answer else "more than one text"
        raise ConfigError(
            f"there is one argument too many, {words[-1]!r}: {what} cannot be given; put an answer in quotes"
        )
    names = words if has_answer else words[:-1]
    if names:
        question_id = find_one(questions, names[0], "open question", "open questions")
    elif len(questions) > 1:
        raise ConfigError(f"several questions are open; say which: {', '.join(questions)}")
    else:
        question_id = next(iter(questions))
        if words and words[-1] == question_id:
            raise ConfigError(f"say what the answer to {question_id!r} is: a TEXT, --option N or --decline")
    if is_declined:
        return question_id, Answer(is_declined=True)
    return question_id, words[-1] if option is None else option


def cancel(
    run: str,
    reason: str | None = None,
    *,
    journal: str | None = None,
) -> int:
    """Stop a run, also one that another process drives.

    The model and the tools are stopped at once. The run then waits until it is resumed; in a session, only the open
    turn ends.

    Examples:
        treadle cancel last
        treadle cancel 0190c3f1 --reason 'wrong file'
    """
    with open_existing(journal) as opened:
        return _send(opened, find_run(opened, run), Cancel(reason), "cancelled")


def label(
    run: str,
    labels: list[str] | None = None,
    remark: str | None = None,
    *,
    journal: str | None = None,
) -> int:
    """Label a run, also one that is finished or that another process drives.

    Examples:
        treadle label last quality=good
        treadle label last --remark 'looked at it again'
    """
    if not labels and not remark:
        raise ConfigError("give a label as NAME=VALUE, or a --remark")
    found = {name: value or None for name, value in read_labels(labels or ()).items()}
    with open_existing(journal) as opened:
        note = Note(labels=found, remark=remark)
        return _send(opened, find_run(opened, run), note, "labelled")


def follow(
    run: str,
    is_new: bool = False,
    *,
    journal: str | None = None,
    shown: o.ViewOptions,
) -> int:
    """Show a run that another process drives, live, with the words of its answers.

    It ends when the run is finished, cancelled or set aside. Ctrl-C ends it too, and leaves the run alone.

    Examples:
        treadle follow last
        treadle follow 0190c3f1 --from-now
    """
    from treadle.cli.terminal.view import make_view

    with open_existing(journal) as opened:
        run_id = find_run(opened, run)
        view = make_view(is_json=shown.is_json, is_quiet=shown.is_quiet, calls=())

        async def show() -> None:
            async for event in listen(opened, run_id, None if is_new else 0):
                waiting = view.on_event(event)  # type: ignore[func-returns-value]
                if waiting is not None:
                    await waiting

        try:
            with closing(view):
                execute(show())
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
        found = Run.load(run_id, opened)
        facts = facts_of([event.body for event in found.events])
        view.finish(found, facts.info(run_id, is_driven=False).duration_seconds)
        return exit_code(found)


def _send(journal: Journal, run_id: str, message: InboxMessage, done: str) -> int:
    """Send a message to a run, print what has become of it, and return the exit code."""
    sent = execute(send(journal, run_id, message))
    if sent.refused is not None:
        print_note(sent.refused)
        return ExitCode.FAILED
    print_note("sent to the process that drives the run" if sent.is_driven else done)
    return ExitCode.DONE


_DECISIONS = ("yes", "no", "edit")


def approve(
    run: str,
    call: str | None = None,
    decision: str | None = None,
    arguments: str | None = None,
    reason: str | None = None,
    *,
    agent: AgentFlags,
    is_trusted: bool = False,
    journal: str | None = None,
    limits: PolicyOptions,
    shown: o.ViewOptions,
) -> int:
    """Decide about a tool call that waits for approval.

    The run then continues, in the process that drives it or else here. Without a CALL, the calls that wait are
    listed; if one call waits, it need not be named. A run waits if --approve says to ask and there is no terminal
    to ask on. An edit runs the call with other arguments, and the model is told so.

    Examples:
        treadle approve last yes
        treadle approve last call_1 edit '{"to": "b@example.org"}'
    """
    from treadle.cli.jobs.driving import FollowUp, print_replies, resume_shown
    from treadle.cli.jobs.resumed_agents import ResumedAgents

    follow_up = FollowUp(journal, agent)
    with open_existing(journal) as opened:
        run_id = find_run(opened, run)
        loaded = Run.load(run_id, opened)
        waiting = loaded.approvals
        if call is None:
            none = f"no call of run {run_id} waits for approval"
            _list_waiting(waiting, _show_call, none, is_json=shown.is_json)
            if not shown.is_json:
                print_replies(loaded, follow_up)
            return ExitCode.DONE if waiting else ExitCode.MISUSE
        is_word = call.lower() in _DECISIONS and call not in waiting
        if decision is None and not is_word:
            raise ConfigError(_explain_missing(run, call, waiting, follow_up))
        if not waiting:
            command = follow_up.write("show", run_id)
            raise ConfigError(f"no call of run {run_id!r} waits for approval; `{command}` shows the run")
        if is_word and len(waiting) == 1 and arguments is None:
            call, decision, arguments = next(iter(waiting)), call, decision
        if decision is None:
            raise ConfigError(_explain_missing(run, call, waiting, follow_up))
        said = _read_decision(decision, arguments, reason)
        is_all = call == "all"
        calls = list(waiting) if is_all else [find_one(waiting, call, "call", "waiting calls")]
        if said.arguments is not None and len(calls) > 1:
            raise ConfigError("edit is for one call; give its id instead of 'all'")
        approvals = dict.fromkeys(calls, said)
        if _is_driven(opened, run_id):
            if _give(opened, run_id, _decisions(approvals), "decision"):
                return ExitCode.DONE
            approvals = {}  # they are recorded: the run was released meanwhile
        agents = ResumedAgents(opened, agent, limits, is_trusted=is_trusted)
        return resume_shown(agents, loaded, shown, follow_up, approvals=approvals)


def _decisions(approvals: dict[str, Decision]) -> list[DecideCall]:
    """Return the messages that decide about calls. Raises: `ConfigError` for arguments that are no JSON object."""
    for said in approvals.values():
        try:
            msgspec.json.decode(said.new_arguments or "{}", type=dict[str, object])
        except UNREADABLE as error:
            raise ConfigError(
                f"the arguments {said.new_arguments!r:.80} are not a JSON object: {error}"
            ) from None
    return [
        DecideCall(call_id, said.is_approved, said.reason, said.new_arguments)
        for call_id, said in approvals.items()
    ]


def _explain_missing(run: str, call: str, waiting: Mapping[str, ToolCall], follow_up: "FollowUp") -> str:
    """Return what to write instead of a command line with the words `run` and `call` alone."""
    if call.lower() in _DECISIONS:
        text = f"several calls wait; say which, or all: {follow_up.write('approve', run, 'all', call)}"
    elif call == "all" or any(call_id.startswith(call) for call_id in waiting):
        text = f"say yes, no or edit: {follow_up.write('approve', run, call, 'yes')}"
    else:
        listing = follow_up.write("approve", run)
        text = (
            f"{call!r} is not a decision, and no call that waits begins with it; list these with: {listing}"
        )
    return text


def _read_decision(text: str, arguments: str | None, reason: str | None) -> Decision:
    """Return the decision that the arguments describe. Raises: `ConfigError`."""
    word = text.lower()
    if word not in _DECISIONS:
        raise ConfigError(f"{text!r} is not a decision; say yes, no or edit")
    if (word == "edit") is (arguments is None):
        raise ConfigError(
            "edit needs the arguments to run the call with, as JSON"
            if arguments is None
            else f"arguments come with edit, not with {word}"
        )
    if reason is not None and word != "no":
        raise ConfigError(f"--reason comes with no, not with {word}")
    return Decision(word != "no", reason, arguments)
