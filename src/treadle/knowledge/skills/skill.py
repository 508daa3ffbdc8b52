"""Skills: folders with a `SKILL.md` by the Agent Skills convention and other files, and the catalog of an agent.

The front matter is YAML with `name` and `description`; `when_to_use`, `tools_required`, `parameters`,
`composes_with` and `token_budget` stand in it under `metadata`, or beside the name. Everything comes from a file,
perhaps of somebody else, so it is checked and limited. Source: agentskills.io, specification as of 2025-12.
"""

import hashlib
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import pydantic
from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Field

from treadle.core.errors import ConfigError
from treadle.core.prompts.fence import fence
from treadle.core.registry import did_you_mean
from treadle.core.texts.documents import decode_or
from treadle.core.texts.mistakes import Keys
from treadle.core.texts.places import Document, Problem, parse_document
from treadle.core.types import Json
from treadle.journal.identity import Trust, read_trust
from treadle.journal.named_files import suggest_path
from treadle.models.config.described import Described
from treadle.sandbox.mount import Mount
from treadle.tools.schema.validation import ArgumentChecker

FILE = "SKILL.md"
MAX_BYTES = 8_000_000
"""The size limit of a skill, all files together."""
MAX_TEXT_BYTES = 1_000_000
"""The size limit of `SKILL.md`."""
MAX_HEAD_BYTES = 64_000
"""The size limit of the front matter."""
MAX_FILES = 500
BUILTIN = Path(__file__).parent / "builtin"
"""The folder of the skills that are part of Treadle."""

_NAME = r"^[a-z0-9]+(-[a-z0-9]+)*$"
_HEAD = re.compile(rb"---[ \t]*\r?\n(.*?)^---[ \t]*\r?(?:\n|\Z)", re.DOTALL | re.MULTILINE)
_EXTRAS = ("when_to_use", "tools_required", "parameters", "composes_with", "token_budget")


class SkillHead(Described, BaseModel):
    """The front matter of a skill."""

    model_config = ConfigDict(extra="ignore", frozen=True, allow_inf_nan=False)

    name: Annotated[str, Field(max_length=64, pattern=_NAME)]
    """The name: lower-case letters, digits and single hyphens; the same as that of the folder."""
    description: Annotated[str, Field(min_length=1, max_length=1024)]
    """What the skill does, and when to use it."""
    license: Annotated[str, Field(max_length=500)] = ""
    """The licence."""
    compatibility: Annotated[str, Field(max_length=500)] = ""
    """What the skill requires of its environment."""
    when_to_use: Annotated[str, Field(max_length=1024)] = ""
    """When the model should use the skill."""
    tools_required: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=50)] = []
    """The tools without which the skill does not work."""
    parameters: dict[str, Any] = {}
    """The JSON Schema of the parameters that `use_skill` takes for the skill; empty if it has none."""
    composes_with: Annotated[list[Annotated[str, Field(max_length=64)]], Field(max_length=10)] = []
    """The skills that come together with this one."""
    token_budget: Annotated[int, Field(ge=100, le=1_000_000)] | None = None
    """The most tokens of the skill's text; by default, that of the agent."""
    allowed_tools: Annotated[str, Field(alias="allowed-tools", max_length=2000)] = ""
    """Tools that the skill's author would allow without a question. Treadle ignores it: the policy decides."""


_KEYS = Keys(SkillHead.model_json_schema, {})


class Skill(Struct, frozen=True, kw_only=True):
    """A skill as its files describe it."""

    head: SkillHead
    folder: Path
    body: str
    """The text after the front matter, with `\\n` at the ends of lines."""
    files: dict[str, bytes]
    """All files of the skill, `SKILL.md` included, by their paths in the folder."""
    digest: str
    """The hash of all files, to which the user's trust is bound."""

    @property
    def name(self) -> str:
        return self.head.name

    @property
    def trust(self) -> Trust:
        """How far the user trusts the files that were read. It is looked up each time."""
        if self.folder.is_relative_to(BUILTIN):
            return Trust.BUILTIN
        return read_trust("skill", self.digest)


def read_skill(folder: Path) -> Skill:
    """Return the skill in a folder. Raises: `ConfigError` that lists all mistakes, each with its line."""
    if not (folder / FILE).is_file():
        raise ConfigError(f"{str(folder)!r} is not a skill: it has no file {FILE}")
    mount = Mount(folder, max_bytes=MAX_BYTES)
    files = dict(mount)
    place = str(folder / FILE)
    if FILE not in files:
        reason = mount.refused.get(FILE, "it is left out by the rules for mounted folders")
        raise ConfigError(f"{place!r} cannot be read: {reason}")
    if len(files) > MAX_FILES:
        raise ConfigError(
            f"the skill {str(folder)!r} has {len(files):,} files, over the limit of {MAX_FILES}"
        )
    data = files[FILE].removeprefix(b"\xef\xbb\xbf")
    if len(data) > MAX_TEXT_BYTES:
        raise ConfigError(
            f"{place!r} has more than {MAX_TEXT_BYTES:,} bytes; put long texts into other files"
        )
    found = _HEAD.match(data)
    if found is None:
        raise ConfigError(f"{place}:1: it must begin with a front matter: YAML between two lines of ---")
    if len(found[1]) > MAX_HEAD_BYTES:
        raise ConfigError(f"{place}:1: the front matter has more than {MAX_HEAD_BYTES:,} bytes")
    # With an empty line in place of the first mark, the numbers of the lines are those of the file.
    head = _read_head(parse_document(b"\n" + found[1], place, is_yaml=True), folder.name)
    try:
        body = data[found.end() :].decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{place}: it is not UTF-8 ({error.reason})") from None
    return Skill(
        head=head,
        folder=folder,
        body="\n".join(body.splitlines()),
        files=files,
        digest=_digest(files),
    )


def _read_head(document: Document, folder_name: str) -> SkillHead:
    """Return the front matter, with the keys of Treadle under `metadata` beside the others."""
    problems = list(document.duplicates())
    extras = document.value.get("metadata")
    if extras is not None and not isinstance(extras, dict):
        problems.append(Problem(("metadata",), f"{extras!r:.60} is not possible; give a mapping"))
    value = {**document.value, **_extras_in(extras if isinstance(extras, dict) else {})}
    tools = value.get("allowed-tools")
    if isinstance(tools, list):
        value["allowed-tools"] = " ".join(map(str, tools))
    try:
        head = SkillHead.model_validate(value)
    except pydantic.ValidationError as error:
        found = _KEYS.explain(error.errors(include_url=False), value)
        inner = extras if isinstance(extras, dict) else {}
        problems += [
            Problem(("metadata", *item.path), item.text) if item.path and item.path[0] in inner else item
            for item in found
        ]
        raise document.error(map(_explain_name, problems)) from None
    if head.name != folder_name:
        problems.append(Problem(("name",), f"it is {head.name!r}, but the folder is {folder_name!r}"))
    if head.parameters:
        try:
            ArgumentChecker(head.parameters).find_fault({})
        except ConfigError as error:
            problems.append(Problem(("metadata", "parameters"), str(error)))
    if problems:
        raise document.error(problems)
    return head


def _explain_name(problem: Problem) -> Problem:
    if problem.path == ("name",) and "match pattern" in problem.text:
        text = problem.text.partition("; it should")[0]
        return Problem(problem.path, f"{text}; use lower-case letters, digits and single hyphens")
    return problem


def _extras_in(metadata: dict[str, Json]) -> dict[str, Json]:
    """Return the keys of Treadle in `metadata`. A value that must not be text may be written as JSON in a text, or
    as names with blanks between them, because the convention has only texts there."""
    found: dict[str, Json] = {}
    for key in _EXTRAS:
        value = metadata.get(key)
        if isinstance(value, str) and key in ("tools_required", "composes_with"):
            found[key] = list(value.replace(",", " ").split())
        elif isinstance(value, str) and key == "parameters":
            found[key] = decode_or(value, value)
        elif value is not None:
            found[key] = value
    return found


def _digest(files: dict[str, bytes]) -> str:
    made = hashlib.sha256()
    for path, content in sorted(files.items()):
        made.update(b"%d:%b%d:" % (len(path.encode()), path.encode(), len(content)))
        made.update(content)
    return made.hexdigest()


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
            raise ConfigError(f"there is no folder {str(folder)!r} with skills{suggest_path(folder)}")
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
