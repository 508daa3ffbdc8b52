"""The skills that the commands of `treadle skills` work on."""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, TypeAlias

import typer

from treadle.knowledge.skills.catalog import Catalog
from treadle.knowledge.skills.skill import FILE, Skill, read_skill

Folders: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--skills",
        metavar="FOLDER",
        help="A folder of skills, or 'builtin'. May be given several times. Default: skills, .treadle/skills and "
        "treadle/skills in the configuration folder, as far as they exist, and builtin.",
    ),
]
SkillName: TypeAlias = Annotated[
    str, typer.Argument(metavar="NAME", help="The name of a skill, or its folder.", show_default=False)
]


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
