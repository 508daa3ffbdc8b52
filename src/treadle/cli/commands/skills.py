"""`treadle skills`: the skills of folders."""

import os
from collections.abc import Sequence
from pathlib import Path

from treadle.cli.exit import ExitCode
from treadle.cli.terminal.output import (
    print_error,
    print_json,
    print_line,
    print_note,
    print_parts,
    write_count,
)
from treadle.journal.identity import Trust, record_trust
from treadle.knowledge.skills.skill import FILE, Catalog, Skill, read_skill


def find_skills(folders: Sequence[Path] | None) -> Catalog:
    """Return the skills in folders, or in the default ones. Raises: `ConfigError`."""
    if folders:
        return Catalog(folders)
    home = os.environ.get("XDG_CONFIG_HOME") or os.path.expanduser("~/.config")
    places = (Path("skills"), Path(".treadle/skills"), Path(home, "treadle", "skills"))
    return Catalog([*[place for place in places if place.is_dir()], "builtin"], is_strict=False)


def find_skill(name: str, folders: Sequence[Path] | None) -> Skill:
    """Return the skill of a name or in a folder. Raises: `ConfigError`."""
    folder = Path(name).expanduser().absolute()
    return read_skill(folder) if (folder / FILE).is_file() else find_skills(folders).get(name)


def list_skills(skills: list[Path] | None = None, is_json: bool = False) -> None:
    """List skills with their trust and description, and say which folders are no usable skills.

    Examples:
        treadle skills list
        treadle skills list --skills ./skills --json
    """
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
            about = " ".join(skill.head.description.split())
            print_parts((f"{skill.name:<{width}}  ", "bold"), (f"{skill.trust:<9}  ", "dim"), (about, ""))
    for text in found.notices:
        print_note(text)


def show(name: str, skills: list[Path] | None = None) -> None:
    """Show a skill: its trust, its files and its text.

    Examples:
        treadle skills show skill-writing
        treadle skills show csv-report --skills ./skills
    """
    skill = find_skill(name, skills)
    print_note(f"{skill.name} · {skill.trust} · {skill.folder} · sha256 {skill.digest}")
    for path, content in sorted(skill.files.items()):
        print_note(f"  {path}  {write_count(len(content), 'byte')}")
    print_line(skill.body)


def check(
    folders: list[Path],
) -> int:
    """Check skills, and print every mistake with its line.

    Examples:
        treadle skills check ./skills
        treadle skills check ./skills/csv-report
    """
    found = Catalog(folders)
    for text in found.notices:
        print_error(text)
    print_note(f"{write_count(len(found.skills), 'skill')} without mistakes")
    return ExitCode.FAILED if found.notices else ExitCode.DONE


def trust(
    name: str,
    skills: list[Path] | None = None,
    is_only_allowed: bool = False,
    is_revoked: bool = False,
) -> None:
    """Trust a skill with its present content. If the content changes, you are asked again.

    Examples:
        treadle skills trust csv-report --skills ./skills
        treadle skills trust csv-report --skills ./skills --revoke
    """
    skill = find_skill(name, skills)
    given = Trust.UNTRUSTED if is_revoked else Trust.ALLOWED if is_only_allowed else Trust.TRUSTED
    record_trust("skill", skill.digest, given, skill.name)
    print_note(f"{skill.name} in {skill.folder} is {skill.trust} (sha256 {skill.digest})")
