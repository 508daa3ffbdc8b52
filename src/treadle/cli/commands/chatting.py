"""`treadle chat`: a conversation on a terminal. Its work is imported when it runs; its help needs none."""

from typing import TYPE_CHECKING

from msgspec.structs import replace

from treadle.cli.options import common as o
from treadle.cli.options.agent_options import AgentFlags, KnowledgeOptions, PolicyOptions
from treadle.core.errors import ConfigError, RunNotFoundError
from treadle.journal.run_info import RunFilter

if TYPE_CHECKING:
    from treadle.agent.agent import Agent
    from treadle.journal.protocol import Journal


def chat(
    session: str | None = None,
    is_continued: bool = False,
    *,
    agent: AgentFlags,
    knowledge: KnowledgeOptions,
    is_trusted: bool = False,
    mount: o.MountOptions,
    instructions: str | None = None,
    journal: str | None = None,
    level: o.Level = "process",
    limits: PolicyOptions,
    is_json: bool = False,
) -> int:
    """Chat with a model that has tools.

    Ctrl-C stops a turn, Ctrl-D leaves. The limits count for each turn. With --json, each line of the input is a
    message, and each turn ends with its summary.

    Examples:
        treadle chat --model openai:gpt-5-mini --mount ./notes
        treadle chat --continue
    """
    from treadle.cli.chat.conversation import Chat
    from treadle.cli.jobs.driving import FollowUp
    from treadle.cli.jobs.journals import open_existing
    from treadle.cli.jobs.resumed_agents import ResumedAgents, make_agent
    from treadle.cli.jobs.run_files import read_mount
    from treadle.journal.registry import open_journal
    from treadle.runs.statuses import find_run

    if is_continued and session is not None:
        raise ConfigError("give --session or --continue, not both")
    follow_up = FollowUp(journal, agent)
    is_new = session is None and not is_continued
    if not is_new:
        _check_kept(mount, instructions, knowledge)
    with open_journal(journal, level) if is_new else open_existing(journal, level) as opened:

        def make(model: str | None, run_id: str | None) -> "Agent":
            given = agent
            if model is not None:
                # A provider has a server and a key of its own; --base-url and --api-key belong to --model.
                has_own = ":" in model and model != agent.model
                server = (None, None) if has_own else (agent.base_url, agent.api_key)
                given = replace(agent, model=model, base_url=server[0], api_key=server[1])
            if run_id is not None:
                return ResumedAgents(opened, given, limits, is_trusted=is_trusted).agent_for_run(run_id)
            return make_agent(
                given,
                opened,
                limits=limits,
                instructions=instructions,
                files=read_mount(mount),
                knowledge=knowledge,
                is_trusted=is_trusted,
                is_chat=True,
            )

        run_id = None
        if not is_new:
            run_id = _find_newest(opened) if session is None else find_run(opened, session)
        is_judge_named = is_new and knowledge.over_file().judge is not None
        return Chat(make, follow_up, run_id, is_json=is_json, has_named_judge=is_judge_named).run()


def _check_kept(mount: o.MountOptions, instructions: str | None, knowledge: KnowledgeOptions) -> None:
    """Raise an error about options that an open session keeps. Raises: `ConfigError`."""
    if mount.path is not None or instructions is not None:
        raise ConfigError(
            "a session keeps its files and instructions; --mount and --instructions are for a new one"
        )
    if knowledge.is_given:
        raise ConfigError(
            "a session keeps its persona, memory, skills, documents and judge; --persona, --memory, --user, "
            "--skills, --document and --judge are for a new one"
        )


def _find_newest(journal: "Journal") -> str:
    """Return the id of the newest session. Raises: `RunNotFoundError` if there is none."""
    found = journal.runs(RunFilter(is_session=True), limit=1, newest_first=True)
    if not found:
        raise RunNotFoundError(
            "there is no session in this journal; begin one with: treadle chat --model NAME"
        )
    return found[0].run_id
