"""What `treadle fork` does."""

from treadle.agent.driving import make_run_id
from treadle.cli.terminal.ask import make_approver
from treadle.cli.terminal.drive import drive
from treadle.cli.terminal.resuming import Resuming
from treadle.cli.terminal.setup import find_run
from treadle.cli.terminal.view import make_view


def fork_run(
    resuming: Resuming,
    run: str,
    at: int | None,
    text: str | None,
    new_run_id: str | None,
    *,
    is_json: bool,
    is_quiet: bool,
) -> int:
    """Fork a run and drive the new one to its end; the exit code."""
    run_id = find_run(resuming.journal, run)
    agent = resuming.agent_for(run_id)
    new_run_id = new_run_id or make_run_id()
    view = make_view(is_json=is_json, is_quiet=is_quiet)
    agent.approver = make_approver(view, is_json=is_json)
    return drive(
        lambda emit: agent.fork(run_id, at, text=text, new_run_id=new_run_id, on_event=emit),
        view,
        new_run_id,
        resuming.path,
    )
