"""`treadle models schema`: the JSON Schema of treadle.toml."""

import msgspec

from treadle.cli.exit import ExitCode
from treadle.cli.terminal.output import print_lines

EXAMPLES = (
    "treadle models schema",
    "treadle models schema > treadle.schema.json",
)


def schema() -> int:
    """Print the JSON Schema of treadle.toml, which editors use to complete and check it."""
    from treadle.models.config.file import config_schema

    print_lines([msgspec.json.format(msgspec.json.encode(config_schema()), indent=2)])
    return ExitCode.DONE
