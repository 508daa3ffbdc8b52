"""`treadle answer`: answers a question that a run waits for, or lists the open questions."""

from contextlib import closing
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.agents import RunAgents
from treadle.cli.jobs.drive import FollowUp, drive, write_answer
from treadle.cli.jobs.execute import execute
from treadle.cli.jobs.journals import find_run, open_existing
from treadle.cli.options import shared as o
from treadle.cli.options.agent import AgentOptions, PolicyOptions
from treadle.cli.terminal.output import clean, print_json, print_note, stdout
from treadle.cli.terminal.questions import find_question, print_question
from treadle.core.asking import Answer, Answerable, Question
from treadle.core.errors import ConfigError
from treadle.runs.resume import record_answers
from treadle.runs.run import Run

EXAMPLES = (
    'treadle answer last "the second one"',
    "treadle answer last call_1 --option 2 --resume",
)


def answer(
    run: o.RunId,
    words: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[QUESTION] TEXT",
            help="The id of the question, or its beginning, if several are open; and the answer: a text, the label "
            "of an option, or JSON for a form.",
            show_default=False,
        ),
    ] = None,
    option: Annotated[
        int | None, typer.Option("--option", "-n", metavar="N", min=1, help="The number of an option.")
    ] = None,
    is_declined: Annotated[bool, typer.Option("--decline", help="Decline to answer.")] = False,
    is_resumed: Annotated[bool, typer.Option("--resume", help="Continue the run after the answer.")] = False,
    *,
    agent: AgentOptions,
    is_trusted: o.IsTrusted = False,
    journal: o.Journal = None,
    limits: PolicyOptions,
    shown: o.ViewOptions,
) -> int:
    """Answer a question that a run waits for.

    The answer is recorded, and used when the run is resumed; --resume does that at once. Without an answer, the
    open questions are listed.
    """
    follow_up = FollowUp(journal, agent.api_key is not None)
    with closing(open_existing(journal)) as opened:
        run_id = find_run(opened, run)
        loaded = Run.load(run_id, opened)
        questions = loaded.open_questions
        if not words and option is None and not is_declined:
            code = _list(run_id, questions, is_json=shown.is_json)
            if questions and not shown.is_json:
                print_note("answer with: " + write_answer(loaded, follow_up))
            return code
        if not questions:
            command = follow_up.write("show", run_id)
            raise ConfigError(f"no question of run {run_id!r} is open; `{command}` shows the run")
        question_id, said = _read_answer(questions, words or [], option, is_declined=is_declined)
        if is_resumed:
            runner = RunAgents(opened, agent, limits, is_trusted=is_trusted).agent_for_run(run_id)
            return drive(
                runner,
                lambda emit: runner.resume(run_id, answers={question_id: said}, on_event=emit),
                shown,
                run_id,
                follow_up,
                calls=[item.call for item in loaded.state.turn.calls.values()],
            )
        execute(record_answers(opened, run_id, {question_id: said}))
        left = Run.load(run_id, opened)
    if left.questions:
        print_note(
            "answered; more questions are open, answer the next with: " + write_answer(left, follow_up)
        )
    else:
        print_note("answered; continue with: " + follow_up.write("resume", run_id))
    return ExitCode.DONE


def _list(run_id: str, questions: dict[str, Question], *, is_json: bool) -> int:
    """Print the open questions, and return 0 if there are any."""
    if is_json:
        print_json(*questions.values())
    elif not questions:
        print_note(f"no question of run {run_id} is open")
    for question in () if is_json else questions.values():
        stdout().print(clean(question.question_id), style="dim", soft_wrap=True)
        print_question(question, stdout())
    return ExitCode.DONE if questions else ExitCode.FAILED


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
        raise ConfigError(f"{words[-1]!r} is too much: {what} cannot be given too; put an answer in quotes")
    names = words if has_answer else words[:-1]
    if names:
        question_id = find_question(questions, names[0])
    elif len(questions) > 1:
        raise ConfigError(f"several questions are open; say which: {', '.join(questions)}")
    else:
        question_id = next(iter(questions))
        if words and words[-1] == question_id:
            raise ConfigError(f"say what the answer to {question_id!r} is: a TEXT, --option N or --decline")
    if is_declined:
        return question_id, Answer(is_declined=True)
    return question_id, words[-1] if option is None else option
