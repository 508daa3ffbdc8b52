"""`treadle persona`: the files of personas."""

from pathlib import Path

from treadle.cli.terminal.output import print_line, print_note


def show(file: Path) -> None:
    """Show the system message of a persona, and what it would start and send. Nothing is started.

    Examples:
        treadle persona show assistant.yaml
        treadle persona show examples/personas/analyst.yaml
    """
    from treadle.knowledge.personas.persona import Persona, demands_of_persona
    from treadle.knowledge.surroundings import describe_persona

    persona = Persona.load(file)
    text, report = describe_persona(persona)
    print_line(text)
    for section in report.sections:
        room = "" if section.budget is None else f" of {section.budget:,}"
        print_note(f"{section.name}: {section.tokens:,}{room} tokens")
    for line in [*report.lines(), *[f"would {item}" for item in demands_of_persona(persona, file.parent)]]:
        print_note(line)


def check(file: Path) -> None:
    """Check the file of a persona and the skills and documents that it names, and print every mistake.

    Examples:
        treadle persona check assistant.yaml
        treadle persona check examples/personas/analyst.yaml
    """
    from treadle.knowledge.personas.persona import Persona
    from treadle.knowledge.surroundings import describe_persona

    persona = Persona.load(file)
    _, report = describe_persona(persona)
    for line in report.lines():
        print_note(line)
    print_note(f"{persona.name}: {report.tokens:,} tokens")


def trust(file: Path) -> None:
    """Trust a persona with its present content, as --trust does. If the content changes, you are asked again.

    Examples:
        treadle persona trust assistant.yaml
        treadle persona trust examples/personas/analyst.yaml
    """
    from treadle.journal.identity import Trust, record_trust
    from treadle.knowledge.personas.persona import Persona, demands_of_persona, digest_of

    persona = Persona.load(file)
    record_trust("persona", digest_of(persona), Trust.TRUSTED, persona.name)
    demands = demands_of_persona(persona, file.parent)
    for item in demands:
        print_note(f"it may {item}")
    print_note(f"{persona.name} in {file} is trusted")
