"""The hooks that the section `telemetry` of treadle.toml asks for."""

from treadle.loop.hooks import Hook
from treadle.models.config.recipe import load_config


def configured_hooks() -> list[Hook]:
    """Return the hooks that treadle.toml asks for. Raises: `ConfigError`."""
    config = load_config()
    table = config.file.telemetry
    found: list[Hook] = []
    if table.turn_log is not None:
        from treadle.telemetry.turn_log import JsonlTurnLog

        path = config.resolve(table.turn_log)
        found.append(JsonlTurnLog(path, max_bytes=table.turn_log_max_bytes, keep=table.turn_log_keep))
    if table.open_telemetry:
        from treadle.telemetry.open_telemetry import OpenTelemetry

        found.append(OpenTelemetry(records_content=table.records_content))
    return found
