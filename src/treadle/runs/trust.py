"""Trust in runs that come from elsewhere: what using such a run would do here, and whether the user allows it."""

from treadle.core.errors import ConfigError, UntrustedError
from treadle.core.spec import AgentSpec
from treadle.core.state import State
from treadle.journal.protocol import Journal
from treadle.runs.agent_parts import is_agent, read_agent
from treadle.runs.run import Run

_MAX_CHARS = 200
"""How many characters of a recorded call's arguments are quoted."""


def demands_of(spec: AgentSpec, state: State | None = None) -> tuple[str, ...]:
    """Return what happens here if the agent of `spec` is built and continues its run in `state`.

    Each item is a phrase such as "start the program 'npx some-server'". Finding it out starts and sends nothing.
    """
    from treadle.models.config.model_demands import demands_of_model
    from treadle.tools.resolve import demands_of_tools

    try:
        found = demands_of_model(spec.model)
    except ConfigError as error:
        found = [f"ask the model {spec.model.name!r} ({error})"]
    for part in spec.tools:
        found += (
            demands_of(read_agent(part)) if is_agent(part) and not part.missing else demands_of_tools(part)
        )
    if spec.context is not None:
        from treadle.knowledge.surroundings import demands_of_context

        found += demands_of_context(spec.context)
    if spec.files is not None:
        found.append(f"open the folder {spec.files!r} for new runs")
    if state is None:
        return tuple(found)
    if state.started is not None and state.started.task is not None:
        found.append(f"load the task set {state.started.task.task_set!r} and use its check")
    for item in state.turn.calls.values():
        if item.result is None:
            call = f"{item.call.name}({item.call.arguments[:_MAX_CHARS]})"
            found.append(f"make the recorded call {call!r}")
    return tuple(found)


def settle_trust(journal: Journal, run_id: str, *, trust: bool) -> bool:
    """Return whether the user trusts a run. If `trust` is true, record that first. Blocks.

    Raises: `RunNotFoundError`.
    """
    if trust and not journal.is_trusted(run_id):
        journal.trust(run_id)
    return trust or journal.is_trusted(run_id)


def require_trust(journal: Journal, run_id: str, spec: AgentSpec, *, trust: bool) -> None:
    """Check that the user trusts a run before the agent of `spec` continues it. If `trust` is true, record it.

    Blocks. Raises: `UntrustedError`, `RunNotFoundError`.
    """
    if not settle_trust(journal, run_id, trust=trust):
        raise UntrustedError(f"run {run_id!r}", demands_of(spec, Run.load(run_id, journal).state))
