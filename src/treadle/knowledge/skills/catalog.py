"""The skills of an agent: found in folders, in order, with what could not be used and why."""

import logging
from collections.abc import Iterable
from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.core.fence import fence
from treadle.core.registry import did_you_mean
from treadle.journal.content_trust import Trust
from treadle.knowledge.skills.skill import BUILTIN, FILE, Skill, read_skill

MAX_DEPTH = 3
"""How many levels of skills may come together."""
MAX_SKILLS = 500
"""How many folders are looked at."""


class Catalog:
    """The skills in some folders by name, and notices about those that cannot be used."""

    def __init__(self, folders: Iterable[str | Path], *, is_strict: bool = True) -> None:
        """Look for skills in `folders`. Each is the folder of one skill, or has the folders of several.

        A skill in an earlier folder is used in place of one with the same name in a later folder. A broken skill is
        skipped with a notice, and so is a folder that does not exist unless `is_strict`. `builtin` stands for the
        skills that are part of Treadle.
        Raises: `ConfigError` for a broken skill whose own folder is in `folders`, and with `is_strict` for a folder
        that does not exist or has no skills.
        """
        self.skills: dict[str, Skill] = {}
        self.notices: list[str] = []
        """What was skipped, each with the reason."""
        for given in folders:
            folder = BUILTIN if str(given) == "builtin" else Path(given).expanduser().absolute()
            try:
                self._search(folder)
            except ConfigError as error:
                if is_strict:
                    raise
                self.notices.append(str(error))
        self._refuse_circles()
        for text in self.notices:
            logging.getLogger("treadle").info("skills: %s", text)

    def get(self, name: str) -> Skill:
        """Return the skill called `name`. Raises: `ConfigError` with the nearest names."""
        if name not in self.skills:
            known = ", ".join(self.skills) or "none"
            hint = did_you_mean(name, self.skills) or ";"
            raise ConfigError(f"there is no skill {name[:64]!r}{hint} the skills are: {known}")
        return self.skills[name]

    def with_composed(self, name: str) -> list[str]:
        """Return `name` and the names of all skills that come with it, the nearest first."""
        names = [name]
        for one in names:
            others = self.skills[one].head.composes_with
            names += [other for other in dict.fromkeys(others) if other in self.skills and other not in names]
        return names

    def index(self, tools: Iterable[str]) -> list[tuple[str, str]]:
        """Return the name of each skill and its entry for the prompt; `tools` are the names of the agent's tools.

        The entry of a skill that the user does not vouch for is fenced off as data.
        """
        known = set(tools)
        return [(skill.name, _entry(skill, known)) for skill in self.skills.values()]

    def _search(self, folder: Path) -> None:
        if (folder / FILE).is_file():
            self._add(read_skill(folder))
            return
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {str(folder)!r} with skills")
        places = sorted(path for path in folder.iterdir() if (path / FILE).is_file())
        if not places:
            raise ConfigError(f"the folder {str(folder)!r} has no skills: no folder in it has a file {FILE}")
        if len(places) > MAX_SKILLS:
            raise ConfigError(
                f"the folder {str(folder)!r} has more than {MAX_SKILLS} skills; give the folders of those that "
                "are needed"
            )
        for place in places:
            try:
                self._add(read_skill(place))
            except ConfigError as error:
                self.notices.append(str(error))

    def _add(self, skill: Skill) -> None:
        first = self.skills.setdefault(skill.name, skill)
        if first.folder != skill.folder:
            self.notices.append(
                f"the skill {skill.name!r} in {str(skill.folder)!r} is not used, because there is one in "
                f"{str(first.folder)!r}"
            )

    def _refuse_circles(self) -> None:
        """Drop the skills that come together with themselves, or with too many levels of others."""
        for name, fault in [(name, self._find_circle((name,))) for name in self.skills]:
            if fault is not None:
                folder = str(self.skills.pop(name).folder)
                self.notices.append(f"the skill {name!r} in {folder!r} is not used: {fault}")
        for name, skill in self.skills.items():
            for other in skill.head.composes_with:
                if other not in self.skills:
                    hint = did_you_mean(other, self.skills)
                    self.notices.append(
                        f"the skill {name!r} composes with {other!r}, which is not there{hint}"
                    )

    def _find_circle(self, trail: tuple[str, ...]) -> str | None:
        skill = self.skills.get(trail[-1])
        for name in () if skill is None else skill.head.composes_with:
            path = " -> ".join((*trail, name))
            if name in trail:
                return f"it composes in a circle: {path}"
            if name in self.skills and len(trail) >= MAX_DEPTH:
                return f"more than {MAX_DEPTH} levels of skills compose: {path}"
            if fault := self._find_circle((*trail, name)):
                return fault
        return None


def _entry(skill: Skill, tools: set[str]) -> str:
    head = skill.head
    text = f"- {head.name}: {_line(head.description)}"
    if head.when_to_use:
        text += f" Use it when: {_line(head.when_to_use)}"
    names = head.parameters.get("properties")
    if isinstance(names, dict) and names:
        text += f" Parameters: {', '.join(map(str, names))[:300]}."
    missing = [name for name in head.tools_required if name not in tools]
    if missing:
        text += f" (It needs tools that you do not have: {', '.join(missing)}.)"
    return text if skill.trust in (Trust.BUILTIN, Trust.TRUSTED) else fence("skill", text)


def _line(text: str) -> str:
    return " ".join(text.split())
