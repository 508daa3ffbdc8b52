"""What the mediocre model is asked for, and which calls do it: requests drawn from a world, and read back."""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache
from typing import Any

from msgspec import Struct

from treadle.core.types import ToolSpec
from treadle.tasks.draws import Draw, Wording
from treadle.tasks.solver import FailedResult, Solver, Step, WantedCall
from treadle.testbed.mediocre.mock_world import RecordTool, draw_value, load_world, misspell_id, record_tools
from treadle.testbed.play import misspell
from treadle.testbed.roles.errands import Shelf
from treadle.testbed.roles.file_kit import FileTools
from treadle.testbed.roles.scenario_role import RequestDraft

DONE = "\x00done"
"""What a solver returns when all calls are made; the answer is composed elsewhere."""
_HINT = "Did you mean '"


class Focus(Struct, frozen=True):
    """What a request is about."""

    field: str = "any"
    """The name of a field; `any` for all of them."""
    owner: str = ""
    """Whose field it is; empty if that is not known."""
    sort: str = ""
    """`sum` or `max`, if these are asked for."""


class Want(Struct, frozen=True):
    """One request: its steps with their calls, and what it is about."""

    calls: tuple[tuple[str, ...], ...]
    values: Mapping[str, str]
    tools: Mapping[str, RecordTool]
    """The mock tools of the split."""
    focus: tuple[Focus, ...] = (Focus(),)
    gap: str = ""
    """The mock tool for which the user gave no id; empty if nothing is missing."""

    def complete(self, text: str) -> "Want | None":
        """Return the request with the id in a further message; `None` if there is none in it."""
        tool = self.tools[self.gap]
        ident = next((item for item in tool.ids() if item in text), None)
        if ident is None:
            return None
        focus = (Focus(self.focus[0].field, tool.owner(ident)),)
        return Want(self.calls, {**self.values, "id": ident}, self.tools, focus)

    def work(self, tools: Sequence[ToolSpec]) -> Solver:
        """Make the calls, and return `DONE`."""
        kit, known = FileTools(tools), dict(self.values)
        for step in self.calls:
            if step[0].startswith("find "):
                yield from kit.find_text(known[step[0].removeprefix("find ")])
                continue
            calls = [self.to_call(text, known, kit) for text in step]
            results = yield Step(calls, may_fail=True)
            known["text"] = results[0]
            fixed = [self._correct(call, result) for call, result in zip(calls, results, strict=True)]
            if fixed != calls:
                yield Step(fixed, may_fail=True)
        return DONE

    def and_then(self, other: "Want", *, at_once: bool) -> "Want":
        """Return the request for both."""
        values = {**self.values, **{f"{name}_": value for name, value in other.values.items()}}
        more = tuple([tuple([_prime(call, other.values) for call in step]) for step in other.calls])
        calls = ((*self.calls[0], *more[0]),) if at_once else (*self.calls, *more)
        return Want(calls, values, self.tools, (*self.focus, *other.focus))

    def to_call(self, text: str, values: Mapping[str, str], kit: FileTools) -> WantedCall:
        """Return a call that a data file writes, such as `read path`."""
        operation, _, rest = text.partition(" ")
        if operation in self.tools:
            return WantedCall(operation, {self.tools[operation].argument: _fill(rest, values)})
        if operation == "read":
            return kit.read(values[rest])
        if operation == "list":
            return kit.list()
        if operation == "write":
            name, _, content = rest.partition(" ")
            return kit.write(values[name], _fill(content, values).rstrip("\n") + "\n")
        if operation == "search":
            return WantedCall("search_files", {"pattern": values[rest]})
        argument = {"python": "code", "shell": "command"}[operation]
        return WantedCall(operation, {argument: _fill(rest, values)})

    def _correct(self, call: WantedCall, result: str) -> WantedCall:
        """Return a call with the id that the error of a mock tool names."""
        if not isinstance(result, FailedResult) or _HINT not in result or call.name not in self.tools:
            return call
        return WantedCall(
            call.name, dict.fromkeys(call.arguments, result.partition(_HINT)[2].partition("'")[0])
        )


def _prime(call: str, values: Mapping[str, str]) -> str:
    """Return a call whose fields have a stroke after their names."""
    for name in values:
        call = call.replace(f"{{{name}}}", f"{{{name}_}}")
    operation, _, rest = call.partition(" ")
    return f"{operation} {' '.join([f'{part}_' if part in values else part for part in rest.split(' ')])}"


def _fill(text: str, values: Mapping[str, str]) -> str:
    for name, value in values.items():
        text = text.replace(f"{{{name}}}", value)
    return text


class _Form(Struct, frozen=True):
    """The wordings of one sort of request."""

    wordings: tuple[Wording, ...]
    calls: tuple[tuple[str, ...], ...]
    focus: str
    rules: Mapping[str, str]
    needs: str
    kinds: tuple[str, ...] = ("single",)
    tool: str = ""
    is_gapped: bool = False
    """True if the wordings have no id."""


@cache
def _forms(texts: str) -> tuple[_Form, ...]:
    found = []
    for tool in record_tools(texts).values():
        for focus, asks in tool.entry["asks"].items():
            calls = ((f"{tool.name} {{id}}",),)
            wordings = tuple(map(Wording, asks))
            found.append(_Form(wordings, calls, focus, {"id": "id"}, tool.name, tool=tool.name))
            lacking = tuple([Wording(_without_id(tool, text)) for text in asks])
            form = _Form(
                lacking, calls, focus, {}, tool.name, ("missing_parameter",), tool.name, is_gapped=True
            )
            found.append(form)
    for entry in load_world(texts)["wants"].values():
        found.append(_to_form(entry))
    return tuple(found)


def _without_id(tool: RecordTool, text: str) -> str:
    """Return a wording that names no id, but `my order` or the like."""
    vague = str(tool.entry["vague"])
    return text.replace(str(tool.entry["owner"]), vague).replace("{id}", vague)


def _to_form(entry: Mapping[str, Any]) -> _Form:
    return _Form(
        tuple(map(Wording, entry["asks"])),
        tuple([tuple(step) for step in entry["calls"]]),
        entry["focus"],
        entry.get("draw", {}),
        entry["needs"],
        tuple(entry.get("kinds", ("single",))),
    )


@cache
def _joiners(texts: str, sort: str) -> tuple[Wording, ...]:
    return tuple(map(Wording, load_world(texts)["joiners"][sort]))


@lru_cache(maxsize=4096)
def find_want(paragraph: str, texts: str) -> Want | None:
    """Return the request in a paragraph; `None` if it is not one of the split."""
    tools = record_tools(texts)
    for sort in ("both", "then"):
        for joiner in _joiners(texts, sort):
            if (values := joiner.match(paragraph)) is None:
                continue
            one, two = find_want(values["one"], texts), find_want(values["two"], texts)
            if one is not None and two is not None:
                return one.and_then(two, at_once=sort == "both")
    for form in _forms(texts):
        for wording in form.wordings:
            if (values := wording.match(paragraph)) is not None:
                focus = _read_focus(form, values, tools)
                return Want(form.calls, values, tools, (focus,), form.tool if form.is_gapped else "")
    return None


def _read_focus(form: _Form, values: Mapping[str, str], tools: Mapping[str, RecordTool]) -> Focus:
    """Return what a request is about."""
    sort, _, field = _fill(form.focus, values).rpartition(" ")
    ident = values.get("id")
    return Focus(field, values.get("path", "") if ident is None else tools[form.tool].owner(ident), sort)


def draw_request(
    texts: str, kind: str, tools: Sequence[ToolSpec], shelf: Shelf, draw: Draw
) -> RequestDraft | None:
    """Return a request that shows a kind of tool use; `None` if the tools and files offer none."""
    fitting = [form for form in draw.shuffled(_forms(texts)) if _is_possible(form, tools)]
    own = [form for form in fitting if kind in form.kinds]
    if kind == "missing_parameter":
        fitting = []
    joined = {"parallel": "both", "chained": "then"}.get(kind)
    if joined and (not own or draw.chance(0.6)):
        singles = [form for form in fitting if form.kinds == ("single",) and len(form.calls) == 1]
        pair = [made for form in singles[:6] if (made := _draw(form, texts, shelf, draw)) is not None]
        if len(pair) > 1:
            text = draw.pick(_joiners(texts, joined)).render({"one": pair[0].request, "two": pair[1].request})
            return RequestDraft(text, "", pair[0].makes + pair[1].makes, pair[0].used | pair[1].used)
    if kind == "recovery":
        own += [form for form in fitting if form.tool and not form.is_gapped]
        own = draw.shuffled(own)
    usual = [form for form in fitting if not form.is_gapped]
    for form in own or usual:
        made = _draw(form, texts, shelf, draw, is_wrong=kind == "recovery" and bool(form.tool))
        if made is not None:
            return made
    return None


def _is_possible(form: _Form, tools: Sequence[ToolSpec]) -> bool:
    names, kit = {tool.name for tool in tools}, FileTools(tools)
    for need in form.needs.split():
        if need in ("read", "write", "list", "delete"):
            if not kit.can(need):
                return False
        elif {"search": "search_files"}.get(need, need) not in names:
            return False
    return True


def _draw(
    form: _Form, texts: str, shelf: Shelf, draw: Draw, *, is_wrong: bool = False
) -> RequestDraft | None:
    values: dict[str, str] = {}
    ids = record_tools(texts)[form.tool].ids() if form.tool else []
    for name, rule in form.rules.items():
        value = draw.pick(ids) if rule == "id" else _draw_field(rule, values, texts, shelf, draw)
        if value is None:
            return None
        values[name] = value
    if is_wrong:
        wrong = misspell_id(values["id"])
        if wrong in ids:
            return None
        values["id"] = wrong
    if form.is_gapped:
        argument = record_tools(texts)[form.tool].argument.replace("_", " ")
        fact = f"The {argument} is {draw.pick(ids)}."
        return RequestDraft(draw.pick(form.wordings).text, fact)
    makes = tuple([values[name] for name, rule in form.rules.items() if rule.startswith("new ")])
    return RequestDraft(draw.pick(form.wordings).render(values), "", makes, frozenset(values.values()))


def _draw_field(rule: str, values: Mapping[str, str], texts: str, shelf: Shelf, draw: Draw) -> str | None:
    kind, _, rest = rule.partition(" ")
    data = load_world(texts)["documents"]
    if kind in ("table", "note", "any"):
        endings = {"table": (".csv",), "note": (".md", ".txt", ".log")}.get(kind, ("",))
        found = [path for path in shelf.heads if path.endswith(endings) and path not in values.values()]
        return draw.pick(found) if found else None
    if kind == "number":
        columns = list(_number_columns(shelf.heads[values["path"]]))
        return draw.pick(columns) if columns else None
    if kind == "new":
        return shelf.draw(rule, values, draw)
    if kind == "misspelt":
        wrong = misspell(values["path"], str(draw.below(1000)))
        return wrong if shelf.is_free(wrong) else None
    if kind in ("word", "line"):
        return str(draw.pick(data["words" if kind == "word" else "new_lines"].split("|")))
    if kind == "numbers":
        low, high = map(int, rest.split())
        return ", ".join([str(draw.between(2, 95)) for _ in range(draw.between(low, high))])
    return str(draw_value(rule, draw))


def _number_columns(head: str) -> Iterator[str]:
    lines = head.splitlines()
    if len(lines) < 2:
        return
    for name, value in zip(lines[0].split(","), lines[1].split(","), strict=False):
        if value.replace(".", "", 1).lstrip("-").isdecimal():
            yield name
