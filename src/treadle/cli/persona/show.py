"""`treadle persona show`: the system message that is made from a persona."""

from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.terminal.output import clean, print_note, stdout

EXAMPLES = (
    "treadle persona show assistant.yaml",
    "treadle persona show examples/personas/analyst.yaml",
)
PersonaFile: TypeAlias = Annotated[
    Path, typer.Argument(metavar="FILE", help="The YAML file of a persona.", show_default=False)
]


def show(file: PersonaFile) -> int:
    """Show the system message of a persona, and what it would start and send. Nothing is started."""
    from treadle.knowledge.personas.persona import Persona
    from treadle.knowledge.surroundings import describe_persona
    from treadle.knowledge.trusted_files import demands_of_persona

    persona = Persona.load(file)
    text, report = describe_persona(persona)
    stdout().print(clean(text), soft_wrap=True)
    for section in report.sections:
        room = "" if section.budget is None else f" of {section.budget:,}"
        print_note(f"{section.name}: {section.tokens:,}{room} tokens")
    for line in [*report.lines(), *[f"would {item}" for item in demands_of_persona(persona, file.parent)]]:
        print_note(line)
    return ExitCode.DONE
