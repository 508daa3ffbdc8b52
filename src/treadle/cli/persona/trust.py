"""`treadle persona trust`: say that a persona's file may be used."""

from treadle.cli.exit import ExitCode
from treadle.cli.persona.show import PersonaFile
from treadle.cli.terminal.output import print_note

EXAMPLES = (
    "treadle persona trust assistant.yaml",
    "treadle persona trust examples/personas/analyst.yaml",
)


def trust(file: PersonaFile) -> int:
    """Trust a persona with its present content, as --trust does. If the content changes, you are asked again."""
    from treadle.knowledge.personas.persona import Persona
    from treadle.knowledge.trusted_files import Trust, demands_of_persona, digest_of, record_trust

    persona = Persona.load(file)
    record_trust("persona", digest_of(persona), Trust.TRUSTED, persona.name)
    demands = demands_of_persona(persona, file.parent)
    for item in demands:
        print_note(f"it may {item}")
    print_note(f"{persona.name} in {file} is trusted")
    return ExitCode.DONE
