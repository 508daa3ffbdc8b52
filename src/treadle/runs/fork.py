"""Forks: runs that begin with a copy of the events of another."""

import asyncio
from typing import Any

from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.state import State, fold
from treadle.core.types import (
    Message,
    Parent,
    Role,
)
from treadle.runs.agent_parts import AgentParts
from treadle.runs.begin import make_run_id
from treadle.runs.drive import (
    Terms,
    drive,
    make_driver,
    restore,
    resumed,
    spec_for,
    system_message,
    warm_up,
    without_schema,
)
from treadle.runs.options import (
    ForkOptions,
    Given,
)
from treadle.runs.resume import load_task_of
from treadle.runs.run import Run
from treadle.runs.task import Task
from treadle.runs.trust import require_trust
from treadle.runs.turns import open_turn


async def fork_run(
    agent: AgentParts,
    run_id: str,
    at: int | None,
    given: Given,
    options: ForkOptions,
) -> Run[Any]:
    """Create a run that begins with a copy of another run's first `at` events, and drive it.

    Raises: `RunNotFoundError`; `ConfigError` if the run has no event `at`, or if `text` is missing or not allowed;
    `UntrustedError`.
    """
    text = options.get("text")
    await asyncio.to_thread(require_trust, agent.journal, run_id, agent.spec, trust=given.trust)
    until_seq = at if at is not None and at > 0 else None
    events = await asyncio.to_thread(agent.journal.read, run_id, until_seq=until_seq)
    at = len(events) if at is None else at
    if not 1 <= at <= len(events):
        raise ConfigError(f"run {run_id!r} has events 1 to {len(events)}; it cannot be forked at {at}")
    started = events[0].body
    assert isinstance(started, e.RunStarted)
    task = load_task_of(started)
    agent.kit.toolbox(task).check_deps(given.deps)
    head = _forked(agent, started, Parent(run_id, at), given, task)
    state = fold([head, *[event.body for event in events[1:at]]])
    if state.turn.is_open is (text is not None):
        raise ConfigError(_explain_fork(state, at))
    sandbox = await restore(agent.journal, state)
    window = await agent.kit.window(head.spec.policy)
    await warm_up(agent)
    writer = agent.journal.create(options.get("new_run_id") or make_run_id())
    terms = Terms(task, head.output, head.spec.policy, window)
    driver = make_driver(agent, State(), writer, sandbox, given, terms)
    driver.put(head)
    driver.recorder.adopt(events[1:at])
    driver.put(resumed(agent, driver, terms))
    if text is not None:
        driver.put(await open_turn(agent, driver, Message(Role.USER, text)))
    return await drive(agent, driver, task, given.answer)


def _forked(
    agent: AgentParts, started: e.RunStarted, parent: Parent, given: Given, task: Task | None
) -> e.RunStarted:
    """Return the first event of a fork, in which the agent's parts replace the recorded ones."""
    recorded = started.output
    schema = given.answer.schema or (None if recorded is None else recorded.schema)
    output = agent.kit.output(schema, task)
    policy = agent.policy if agent.has_policy else started.spec.policy
    spec = spec_for(agent, task, schema, started.spec.files)
    instructions = started.system_message
    if output is not None and output != recorded:
        # The text of the schema, if another model needs it, is not in the recorded message.
        told = (
            started.system_message if recorded is None else without_schema(started.system_message, recorded)
        )
        instructions = system_message(started.spec, told, output) or started.spec.instructions
    return replace(
        started,
        version=e.VERSION,
        agent=replace(spec, instructions=started.spec.instructions, policy=policy),
        instructions=instructions,
        tools=agent.kit.toolbox(task, output, given.answer).under(policy).specs,
        parent=parent,
        output=output,
        policy=None,
        model=None,
    )


def _explain_fork(state: State, at: int) -> str:
    if state.turn.is_open:
        return f"the turn is not over at event {at}, so the fork continues it; do not give a text"
    return f"the turn is over at event {at}; give a text for the next turn, or an earlier event"
