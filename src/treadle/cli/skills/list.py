"""`treadle skills list`: the skills in folders."""

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.skills.find import Folders, find_skills
from treadle.cli.terminal.output import clean, print_json, print_note, stdout

EXAMPLES = (
    "treadle skills list",
    "treadle skills list --skills ./skills --json",
)


def list_skills(skills: Folders = None, is_json: o.IsJson = False) -> int:
    """List skills with their trust and description, and say which folders are no usable skills."""
    found = find_skills(skills)
    if is_json:
        print_json(
            *[
                {
                    "name": skill.name,
                    "description": skill.head.description,
                    "trust": skill.trust.value,
                    "folder": str(skill.folder),
                    "sha256": skill.digest,
                }
                for skill in found.skills.values()
            ]
        )
    else:
        width = max([len(name) for name in found.skills], default=0)
        for skill in found.skills.values():
            stdout().print(f"{clean(skill.name):<{width}}  ", style="bold", end="")
            stdout().print(f"{skill.trust:<9}  ", style="dim", end="")
            stdout().print(clean(" ".join(skill.head.description.split())), soft_wrap=True)
    for text in found.notices:
        print_note(text)
    return ExitCode.DONE
