"""Reports about events for operators: a log of turns, statistics, OpenTelemetry, and curves of jobs.

Read first: `turn_records.py` (one record for each turn), then `turn_log.py` (the log of them, and the hooks that
treadle.toml asks for), `usage_stats.py` and `open_telemetry.py`. All of them keep a `StepFold` of `core/turns.py`.
A hook is any function of an event; a class may also have the methods in `loop/listener.py`. The names below are
loaded when they are first used.

`curves.py` writes named values by step to TensorBoard, trackio, W&B and OpenTelemetry. A writer is a class there
and a line in its registry.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.telemetry.open_telemetry import OpenTelemetry as OpenTelemetry
    from treadle.telemetry.turn_log import JsonlTurnLog as JsonlTurnLog
    from treadle.telemetry.turn_log import TurnLog as TurnLog
    from treadle.telemetry.turn_records import TurnRecord as TurnRecord
    from treadle.telemetry.turn_records import read_turn_records as read_turn_records


def __getattr__(name: str) -> object:
    from treadle.core.registry import load_name

    return load_name(__name__, name)
