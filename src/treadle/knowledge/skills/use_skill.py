"""The tool `use_skill`: it brings the text of a skill, and puts the skill's files into the sandbox.

A skill is brought once in a session: the second call says so, and in which step it came. Which skills came is a
state of the tool in the sandbox's snapshot, so that it is the same after a crash. A call with `from_line` always
brings text: it continues a text that was cut, and brings one again that a compaction has removed.

The text of a skill that the user vouches for is given as instructions. If the user only allowed a skill, its text
is fenced off as data. The model may follow such a text where it helps with the user's request, but nothing can
force a model to do no more than that. The tools of the agent and the policy limit what a skill can do.
"""

import asyncio
import re
from collections.abc import Mapping

import msgspec

from treadle.core.errors import ConfigError, ToolError
from treadle.core.prompts.estimates import guess_tokens
from treadle.core.prompts.fence import fence
from treadle.core.texts.documents import read_data
from treadle.core.types import Json, ToolCall
from treadle.journal.identity import Trust, record_trust
from treadle.knowledge.skills.skill import FILE, Catalog, Skill, read_skill
from treadle.tools.context import ToolContext
from treadle.tools.schema.validation import ArgumentChecker, own_spec

NAME = "use_skill"
TOKENS = 8000
"""The most tokens of one call's result, if the skill does not say otherwise."""
FOLDER = ".skills"
"""The folder in the sandbox for the files of skills."""
_STATE = "skills"
_TOLD: dict[str, str] = read_data(__package__, "use_skill")
_PLACEHOLDER = re.compile(r"\{\{\s*([\w-]+)\s*\}\}")


class UseSkill:
    """The tool `use_skill` for the skills of one catalog. See `Tool`."""

    def __init__(self, catalog: Catalog, *, max_tokens: int = TOKENS) -> None:
        self._catalog = catalog
        self._max_tokens = max_tokens
        self.spec = own_spec(NAME)
        self._find_fault = ArgumentChecker(self.spec.parameters).find_fault

    def find_fault(self, arguments: Json) -> str | None:
        """See `Tool.find_fault`. Parameters must fit the schema of the skill."""
        fault = self._find_fault(arguments)
        if fault is not None or not isinstance(arguments, dict):
            return fault
        skill = self._catalog.skills.get(str(arguments["name"]))
        if skill is None or "from_line" in arguments:
            return None
        if not skill.head.parameters:
            return f"the skill {skill.name!r} takes no parameters" if arguments.get("parameters") else None
        fault = ArgumentChecker(skill.head.parameters).find_fault(arguments.get("parameters") or {})
        return fault and f"`parameters` do not fit the skill {skill.name!r}: {fault}"

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str:
        name, from_line = str(arguments["name"]), arguments.get("from_line")
        try:
            self._catalog.get(name)
        except ConfigError as error:
            raise ToolError(str(error)) from None
        brought = _read_state(context)
        if name in brought and from_line is None:
            return (
                f"The skill {name!r} was brought in step {brought[name]}; its instructions stand there. If you can "
                "no longer see them, call use_skill with from_line=1."
            )
        first = await self._take(name, context)
        budget = first.head.token_budget or self._max_tokens
        parameters = arguments.get("parameters") or {}
        if from_line is not None:
            return _present(first, parameters, budget, from_line)[0]
        texts, brought[name] = [], context.step
        for other in self._catalog.with_composed(name):
            if other != name and other in brought:
                texts.append(f"The skill {other!r} belongs to it, and was brought in step {brought[other]}.")
                continue
            try:
                skill = first if other == name else await self._take(other, context)
            except ToolError as error:
                texts.append(f"The skill {other!r} belongs to it, and is not here: {error}")
                continue
            if other != name and budget < guess_tokens(skill.body):
                texts.append(f"The skill {other!r} belongs to it, and had no room; bring it with use_skill.")
                continue
            text, cost = _present(skill, parameters if other == name else {}, budget, 1)
            texts.append(text)
            budget -= cost
            brought[other] = context.step
            _put_files(skill, context)
        _write_state(context, brought)
        return "\n\n".join(texts)

    async def _take(self, name: str, context: ToolContext) -> Skill:
        """Return a skill as its files are now, if the user trusts or allows it. Raises: `ToolError`."""
        try:
            skill = await asyncio.to_thread(read_skill, self._catalog.skills[name].folder)
        except ConfigError as error:
            raise ToolError(f"the skill {name!r} cannot be read any more: {error}") from None
        if skill.trust is not Trust.UNTRUSTED:
            return skill
        facts: dict[str, Json] = {
            "name": name,
            "folder": str(skill.folder),
            "files": len(skill.files),
            "sha256": skill.digest,
        }
        asked = ToolCall(context.call_id, NAME, msgspec.json.encode(facts).decode())
        decision = await context.consult(asked)
        if decision is None:
            raise ToolError(
                f"the skill {name!r} is not trusted, and nobody is there to ask. The user can allow it with: "
                f"treadle skills trust {name} --skills {skill.folder.parent!s}"
            )
        if not decision.is_approved:
            raise ToolError(
                f"the user did not allow the skill {name!r}{f': {decision.reason}' if decision.reason else ''}"
            )
        record_trust("skill", skill.digest, Trust.ALLOWED, name)
        return skill


def _present(skill: Skill, parameters: Mapping[str, Json], budget: int, first: int) -> tuple[str, int]:
    """Return the text of a skill from line `first` of its body on, for the model, and its tokens."""

    def insert(match: re.Match[str]) -> str:
        value = parameters.get(match[1], match[0])
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    lines = _PLACEHOLDER.sub(insert, skill.body).split("\n") if parameters else skill.body.split("\n")
    if first > len(lines):
        return f"The instructions of {skill.name!r} have {len(lines)} lines.", 0
    end, cost = first - 1, 0
    while end < len(lines) and (cost + guess_tokens(lines[end]) + 1 <= budget or end < first):
        cost += guess_tokens(lines[end]) + 1
        end += 1
    text = "\n".join(lines[first - 1 : end])
    if end == first and guess_tokens(text) > budget:
        text = f"{text[:budget]} … (the rest of this line is left out)"
    is_allowed = skill.trust not in (Trust.BUILTIN, Trust.TRUSTED)
    parts = [f"The skill {skill.name!r}{f', from line {first}' if first > 1 else ''}:"]
    parts += [_TOLD["allowed"], fence("skill", text, name=skill.name)] if is_allowed else [text]
    if end < len(lines):
        parts.append(
            f"[{len(lines) - end} of {len(lines)} lines are left out here. Read on with use_skill(name="
            f"{skill.name!r}, from_line={end + 1}), or in {FOLDER}/{skill.name}/{FILE}.]"
        )
    if parameters:
        parts.append(f"Parameters: {msgspec.json.encode(parameters).decode()}")
    others = [path for path in skill.files if path != FILE]
    if others and first == 1:
        shown = ", ".join(others[:20]) + (f" and {len(others) - 20} more" if len(others) > 20 else "")
        told = f"Its files are in {FOLDER}/{skill.name}/: {shown}"
        parts.append(fence("skill", told, name=skill.name) if is_allowed else told)
    return "\n\n".join(parts), cost


def _put_files(skill: Skill, context: ToolContext) -> None:
    """Write the files of a skill into the sandbox. They are part of the call's snapshot."""
    if context.sandbox is None:
        return
    for path, content in skill.files.items():
        context.sandbox.write(f"{FOLDER}/{skill.name}/{path}", content)


def _read_state(context: ToolContext) -> dict[str, int]:
    stored = None if context.sandbox is None else context.sandbox.read_state(_STATE)
    return {} if stored is None else msgspec.json.decode(stored, type=dict[str, int])


def _write_state(context: ToolContext, brought: Mapping[str, int]) -> None:
    if context.sandbox is not None:
        context.sandbox.write_state(_STATE, msgspec.json.encode(brought, order="sorted"))
