"""What `treadle replay` does."""

import time
from collections.abc import Sequence

import msgspec

from treadle.cli.terminal.execute import execute
from treadle.cli.terminal.output import clean, print_lines, stdout, write_count, write_seconds
from treadle.cli.terminal.setup import Limits
from treadle.core import events as e
from treadle.core.policy import Policy
from treadle.core.replay import Replay, replay
from treadle.journal.protocol import Journal
from treadle.tools.schema.output import find_output_fault


async def replay_run(journal: Journal, run_id: str, limits: Limits | None = None) -> Replay:
    """Replay one run, with `limits` in the place of the recorded ones."""
    events = journal.read(run_id)
    started = events[0].body if events else None
    recorded = started.spec.policy if isinstance(started, e.RunStarted) else Policy()
    policy = limits.over(recorded) if limits is not None else recorded
    return replay(events, find_output_fault, policy if policy != recorded else None)


def replay_runs(journal: Journal, run_ids: Sequence[str], limits: Limits, *, is_json: bool) -> int:
    """Replay all and print what came of each; 0 if all are exact."""
    begin = time.monotonic()
    exact = events = 0

    async def replay_all() -> None:
        nonlocal exact, events
        for run_id in run_ids:
            found = await replay_run(journal, run_id, limits)
            exact += found.is_exact
            events += found.events
            _print(found, is_json=is_json)

    execute(replay_all())
    if not is_json and len(run_ids) > 1:
        seconds = write_seconds(time.monotonic() - begin)
        stdout().print(
            f"{exact:,} of {write_count(len(run_ids), 'run')} exact, {write_count(events, 'event')} in {seconds}",
            style="bold",
        )
    return 0 if exact == len(run_ids) else 1


def _print(replay: Replay, *, is_json: bool) -> None:
    divergence = replay.divergence
    if is_json:
        line = {
            "run_id": replay.run_id,
            "is_exact": replay.is_exact,
            "events": replay.events,
            "divergence": divergence
            and {"seq": divergence.seq, "expected": divergence.expected, "actual": divergence.actual},
        }
        print_lines([msgspec.json.encode(line)])
        return
    console = stdout()
    console.print("exact   " if divergence is None else "differs ", style=None, end="")
    console.print(
        f"{clean(replay.run_id)}  {write_count(replay.events, 'event')}", style="dim", soft_wrap=True
    )
    if divergence is not None:
        console.print(f"  {clean(str(divergence))}", style="red", soft_wrap=True)
