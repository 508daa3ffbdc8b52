"""`treadle persona schema`: the JSON Schema of a persona's file."""

from treadle.cli.exit import ExitCode
from treadle.cli.terminal.output import print_schema

EXAMPLES = (
    "treadle persona schema",
    "treadle persona schema > persona.schema.json",
)


def schema() -> int:
    """Print the JSON Schema of a persona's file, which editors use to complete and check it."""
    from treadle.knowledge.personas.persona import persona_schema

    print_schema(persona_schema())
    return ExitCode.DONE
