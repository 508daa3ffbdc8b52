"""The command `treadle chat`: its options, and which session it begins or continues."""

from contextlib import closing
from typing import Annotated

import typer

from treadle.cli.chat.conversation import Chat
from treadle.cli.jobs.agents import RunAgents, make_agent
from treadle.cli.jobs.disk import read_mount
from treadle.cli.jobs.drive import FollowUp
from treadle.cli.jobs.journals import find_run, open_existing, open_or_make
from treadle.cli.options import shared as o
from treadle.cli.options.agent import AgentOptions, PolicyOptions
from treadle.cli.options.complete import complete_run
from treadle.cli.options.knowledge import KnowledgeOptions
from treadle.core.errors import ConfigError, RunNotFoundError
from treadle.journal.protocol import Journal, RunFilter

EXAMPLES = (
    "treadle chat --model openai:gpt-5-mini --mount ./notes",
    "treadle chat --continue",
)


def chat(
    session: Annotated[
        str | None,
        typer.Option(
            "--session",
            "-s",
            metavar="RUN",
            help="Continue a session: its id, or 'last'.",
            autocompletion=complete_run,
        ),
    ] = None,
    is_continued: Annotated[
        bool, typer.Option("--continue", "-c", help="Continue the newest session of the journal.")
    ] = False,
    *,
    agent: AgentOptions,
    knowledge: KnowledgeOptions,
    is_trusted: o.IsTrusted = False,
    mount: o.MountOptions,
    instructions: o.Instructions = None,
    journal: o.Journal = None,
    level: o.LevelOption = o.Level.PROCESS,
    limits: PolicyOptions,
    is_json: o.IsStreamJson = False,
) -> int:
    """Chat with a model that has tools.

    Ctrl-C stops a turn, Ctrl-D leaves. The limits count for each turn. With --json, each line of the input is a
    message, and each turn ends with its summary.
    """
    if is_continued and session is not None:
        raise ConfigError("give --session or --continue, not both")
    follow_up = FollowUp(journal, agent.api_key is not None)
    is_new = session is None and not is_continued
    with closing(open_or_make(journal, level) if is_new else open_existing(journal, level)) as opened:
        if is_new:
            runner = make_agent(
                agent,
                opened,
                limits=limits,
                instructions=instructions,
                files=read_mount(mount),
                knowledge=knowledge.over_file(),
                is_trusted=is_trusted,
                judge="patterns",
            )
            return Chat(runner, follow_up, None, is_json=is_json).run()
        if mount.path is not None or instructions is not None:
            raise ConfigError(
                "a session keeps its files and instructions; --mount and --instructions are for a new one"
            )
        if knowledge.is_given:
            raise ConfigError(
                "a session keeps its persona, memory, skills, documents and judge; --persona, --memory, --user, "
                "--skills, --document and --judge are for a new one"
            )
        run_id = _find_newest(opened) if session is None else find_run(opened, session)
        agents = RunAgents(opened, agent, limits, is_trusted=is_trusted)
        return Chat(agents.agent_for_run(run_id), follow_up, run_id, is_json=is_json).run()


def _find_newest(journal: Journal) -> str:
    """Return the id of the newest session. Raises: `RunNotFoundError` if there is none."""
    found = journal.runs(RunFilter(is_session=True), limit=1, newest_first=True)
    if not found:
        raise RunNotFoundError(
            "there is no session in this journal; begin one with: treadle chat --model NAME"
        )
    return found[0].run_id
