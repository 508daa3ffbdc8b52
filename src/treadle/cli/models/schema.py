"""`treadle models schema`: the JSON Schema of treadle.toml."""

from treadle.cli.exit import ExitCode
from treadle.cli.terminal.output import print_schema

EXAMPLES = (
    "treadle models schema",
    "treadle models schema > treadle.schema.json",
)


def schema() -> int:
    """Print the JSON Schema of treadle.toml, which editors use to complete and check it."""
    from treadle.models.config.toml_file import config_schema

    print_schema(config_schema())
    return ExitCode.DONE
