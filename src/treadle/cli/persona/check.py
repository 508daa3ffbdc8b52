"""`treadle persona check`: all mistakes of a persona's file."""

from treadle.cli.exit import ExitCode
from treadle.cli.persona.show import PersonaFile
from treadle.cli.terminal.output import print_note

EXAMPLES = (
    "treadle persona check assistant.yaml",
    "treadle persona check examples/personas/analyst.yaml",
)


def check(file: PersonaFile) -> int:
    """Check the file of a persona and the skills and documents that it names, and print every mistake."""
    from treadle.knowledge.personas.persona import Persona
    from treadle.knowledge.surroundings import describe_persona

    persona = Persona.load(file)
    _, report = describe_persona(persona)
    for line in report.lines():
        print_note(line)
    print_note(f"{persona.name}: {report.tokens:,} tokens")
    return ExitCode.DONE
