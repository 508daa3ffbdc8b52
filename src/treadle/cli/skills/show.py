"""`treadle skills show`: one skill, as a model gets it."""

from treadle.cli.exit import ExitCode
from treadle.cli.skills.find import Folders, SkillName, find_skill
from treadle.cli.terminal.output import clean, print_note, stdout, write_count

EXAMPLES = (
    "treadle skills show skill-writing",
    "treadle skills show csv-report --skills ./skills",
)


def show(name: SkillName, skills: Folders = None) -> int:
    """Show a skill: its trust, its files and its text."""
    skill = find_skill(name, skills)
    print_note(f"{skill.name} · {skill.trust} · {skill.folder} · sha256 {skill.digest}")
    for path, content in sorted(skill.files.items()):
        print_note(f"  {path}  {write_count(len(content), 'byte')}")
    stdout().print(clean(skill.body), soft_wrap=True)
    return ExitCode.DONE
