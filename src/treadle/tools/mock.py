"""Tools that only pretend: from their definitions, fixtures, templates, or a model that answers in their place.

Every result is marked as simulated. A call that nothing answers is an error, never a success that was made up.

The file format is any of tool definitions, with `fixtures` (and `default`) beside the tools or within each:

    {"tools": [{"name": "weather", "parameters": {...},
      "fixtures": [{"match": {"city": "Oslo"}, "result": {"celsius": 4}},
                   {"match": {"city": {"$regex": "^New "}}, "results": ["first", "then"]},
                   {"when": {"paid": true}, "result": "{{city}} is fine", "set": {"seen": "{{city}}"}},
                   {"error": "there is no city {{city}}"}]}]}

The fixture of most criteria wins, the later of equals. A result may be a template: `{{name}}` is an argument (with
`{{name.inner}}`), `{{state.name}}` what was set, `{{call_count}}` how often the tool was called in this run. With
`"simulator": "openai:gpt-5-mini"` (and `seed`, and a folder `cache`) a model answers what no fixture does.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ToolError
from treadle.core.types import Json, ToolSpec
from treadle.tools.definitions import parse_definitions, read_definitions
from treadle.tools.protocol import ToolContext, ToolOutput
from treadle.tools.validation import ArgumentChecker

if TYPE_CHECKING:
    from treadle.models.protocol import Model

STATE = "mock"
_PLACE = re.compile(r"\{\{\s*([\w.\-]+)\s*\}\}")
_ECHO = "echo"


class Fixture(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One canned answer. Without `match` and `when` it answers every call."""

    match: dict[str, Json] = {}
    """Argument to the value that it must equal, or `{"$regex": "..."}`, or `{"$any": true}` for being there."""
    when: dict[str, Json] = {}
    """The same for what was set before in this run."""
    result: Json = msgspec.UNSET
    results: tuple[Json, ...] = ()
    """For the first call, the second, and so on; the last one stays."""
    error: str | None = None
    set: dict[str, Json] = {}
    """What is set for later calls of the run."""


class _Memory(Struct):
    """What a run's mocked tools remember."""

    counts: dict[str, int] = {}
    """Calls by tool, and uses by fixture."""
    values: dict[str, Json] = {}
    history: list[tuple[str, Json, str]] = []
    """Of a simulated world: tool, arguments, answer."""


class Mock:
    """A toolset of mocked tools."""

    def __init__(
        self,
        definitions: Sequence[ToolSpec] | str,
        *,
        fixtures: Mapping[str, Sequence[Fixture | Mapping[str, Json]]] | None = None,
        default: Json = msgspec.UNSET,
        simulator: "Model | str | None" = None,
        seed: int = 0,
        cache: str | Path | None = None,
    ) -> None:
        """`definitions` are tools or a file of them. `default`, if given, answers what no fixture does: a template,
        or the text `echo` for the object that DeepFabric's mock component gives. `simulator`, if given, answers
        instead: a model, in the tool's place, whose answers are kept in the folder `cache` if one is given.

        Raises: `ConfigError`.
        """
        given: dict[str, Sequence[Fixture | Mapping[str, Json]]] = dict(fixtures or {})
        if isinstance(definitions, str):
            read = read_definitions(definitions)
            tools = read.tools
            given, default = _join_fixtures(read.raw, read.rest, given, default, repr(definitions))
            simulator, seed = simulator or read.rest.get("simulator"), read.rest.get("seed", seed)
            cache = cache or read.rest.get("cache")
        else:
            tools = tuple(definitions)
        unknown = given.keys() - {tool.name for tool in tools}
        if unknown:
            raise ConfigError(f"there are fixtures for {min(unknown)!r}, which is no tool of this mock")
        self.simulator = None
        if simulator is not None:
            from treadle.tools.simulate import Simulator

            self.simulator = Simulator(simulator, seed, cache)
        self._tools = tuple(
            [MockTool(self, tool, _read_fixtures(tool.name, given.get(tool.name, ()))) for tool in tools]
        )
        self.default = default

    def tools(self) -> "tuple[MockTool, ...]":
        """See `Toolset.tools`."""
        return self._tools


class MockTool:
    """One mocked tool."""

    def __init__(self, mock: Mock, spec: ToolSpec, fixtures: tuple[Fixture, ...]) -> None:
        # One after another: what a call sets, the next one of the step sees.
        self.spec = replace(spec, is_concurrent=False)
        self.find_fault = ArgumentChecker(spec.parameters).find_fault
        self.fixtures = list(fixtures)
        self._mock = mock

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> ToolOutput:
        """See `Tool.call`. Raises: `ToolError` if nothing answers the call."""
        memory = _recall(context)
        name = self.spec.name
        count = memory.counts[name] = memory.counts.get(name, 0) + 1
        known = {**arguments, "state": memory.values, "call_count": count, "arguments": arguments}
        found = self.choose(arguments, memory.values)
        if found is None:
            output = await self._answer_without(arguments, known, memory)
        else:
            output = self._use(found, known, memory)
        if context.sandbox is not None:
            context.sandbox.write_state(STATE, msgspec.json.encode(memory))
        return output

    def choose(self, arguments: Mapping[str, Json], state: Mapping[str, Json]) -> Fixture | None:
        """The fixture of most criteria that fits; the later of equals."""
        best: Fixture | None = None
        for fixture in self.fixtures:
            is_fit = _fits(fixture.match, arguments) and _fits(fixture.when, state)
            if is_fit and (best is None or _weight(fixture) >= _weight(best)):
                best = fixture
        return best

    def _use(self, fixture: Fixture, known: Mapping[str, Json], memory: _Memory) -> ToolOutput:
        key = f"{self.spec.name}#{self.fixtures.index(fixture)}"
        used = memory.counts.get(key, 0)
        memory.counts[key] = used + 1
        if fixture.error is not None:
            answer, is_error = fill(fixture.error, known), True
        elif fixture.results:
            answer, is_error = fill(fixture.results[min(used, len(fixture.results) - 1)], known), False
        else:
            answer, is_error = fill(None if fixture.result is msgspec.UNSET else fixture.result, known), False
        memory.values |= {name: fill(value, known) for name, value in fixture.set.items()}
        return _to_output(answer, is_error=is_error)

    async def _answer_without(
        self, arguments: dict[str, Json], known: Mapping[str, Json], memory: _Memory
    ) -> ToolOutput:
        if self._mock.simulator is not None:
            output = await self._mock.simulator.answer(self.spec, arguments, memory.history)
            memory.history.append((self.spec.name, arguments, output.content))
            return output
        if self._mock.default == _ECHO:
            return _to_output(
                {
                    "tool": self.spec.name,
                    "description": self.spec.description,
                    "input_received": arguments,
                    "mock_result": f"Successfully executed {self.spec.name}",
                    "status": "success",
                }
            )
        if self._mock.default is not msgspec.UNSET:
            return _to_output(fill(self._mock.default, known))
        raise ToolError(
            f"the mock of {self.spec.name} has no fixture for {msgspec.json.encode(arguments).decode()}"
        )


def mock(text: str) -> Mock:
    """The mocked tools of a file: `mock:tools.json`. Raises: `ConfigError`."""
    return Mock(text)


def fill(template: Json, known: Mapping[str, Json]) -> Json:
    """`template` with its places filled in; one that is a text's whole content keeps its value's type.

    A place that nothing is known for stays as it is.
    """
    if isinstance(template, dict):
        return {key: fill(value, known) for key, value in template.items()}
    if isinstance(template, list | tuple):
        return [fill(value, known) for value in template]
    if not isinstance(template, str):
        return template
    whole = _PLACE.fullmatch(template)
    if whole:
        value = _find(whole[1], known)
        return template if value is msgspec.UNSET else value

    def write(place: re.Match[str]) -> str:
        value = _find(place[1], known)
        if value is msgspec.UNSET:
            return place[0]
        return value if isinstance(value, str) else msgspec.json.encode(value).decode()

    return _PLACE.sub(write, template)


def _find(path: str, known: Mapping[str, Json]) -> Json:
    value: Json = known
    for part in path.split("."):
        if isinstance(value, Mapping) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            return msgspec.UNSET
    return value


def _fits(criteria: Mapping[str, Json], values: Mapping[str, Json]) -> bool:
    return all(_is_equal(wanted, _find(path, values)) for path, wanted in criteria.items())


def _is_equal(wanted: Json, value: Json) -> bool:
    if isinstance(wanted, dict) and len(wanted) == 1:
        if "$any" in wanted:
            return (value is not msgspec.UNSET) is bool(wanted["$any"])
        if "$regex" in wanted:
            return isinstance(value, str) and re.search(wanted["$regex"], value) is not None
    # 1 and true are equal in Python, and not in JSON.
    return value is not msgspec.UNSET and msgspec.json.encode(wanted, order="sorted") == msgspec.json.encode(
        value, order="sorted"
    )


def _weight(fixture: Fixture) -> int:
    return len(fixture.match) + len(fixture.when)


def _to_output(answer: Json, *, is_error: bool = False) -> ToolOutput:
    if isinstance(answer, str):
        return ToolOutput(answer, is_error=is_error, is_simulated=True)
    text = "" if answer is None else msgspec.json.encode(answer).decode()
    return ToolOutput(text, is_error=is_error, is_simulated=True, structured=answer)


def _recall(context: ToolContext) -> _Memory:
    raw = context.sandbox.read_state(STATE) if context.sandbox is not None else None
    return _Memory() if raw is None else msgspec.json.decode(raw, type=_Memory)


def _read_fixtures(name: str, given: Sequence[Fixture | Mapping[str, Json]]) -> tuple[Fixture, ...]:
    found = []
    for number, item in enumerate(given, 1):
        try:
            fixture = item if isinstance(item, Fixture) else msgspec.convert(_modern(item), Fixture)
        except msgspec.ValidationError as error:
            raise ConfigError(f"fixture {number} of {name!r}: {error}") from error
        for wanted in (*fixture.match.values(), *fixture.when.values()):
            if isinstance(wanted, dict) and "$regex" in wanted:
                try:
                    re.compile(wanted["$regex"])
                except (re.error, TypeError) as error:
                    raise ConfigError(
                        f"fixture {number} of {name!r}: {wanted['$regex']!r} is no regular expression ({error})"
                    ) from error
        says = (fixture.result is not msgspec.UNSET, bool(fixture.results), fixture.error is not None)
        if sum(says) > 1:
            raise ConfigError(f"fixture {number} of {name!r} has more than one of result, results and error")
        found.append(fixture)
    return tuple(found)


def _modern(item: Mapping[str, Json]) -> Mapping[str, Json]:
    """DeepFabric's mock component calls a fixture's result its response."""
    if "response" in item and "result" not in item:
        return {
            **{key: value for key, value in item.items() if key != "response"},
            "result": item["response"],
        }
    return item


def _join_fixtures(
    raw: Sequence[dict[str, Json]],
    rest: Mapping[str, Json],
    given: dict[str, Sequence[Fixture | Mapping[str, Json]]],
    default: Json,
    origin: str,
) -> tuple[dict[str, Sequence[Fixture | Mapping[str, Json]]], Json]:
    """The fixtures of a file, those within its tools first, then those beside them, then those of the program."""
    joined: dict[str, list[Any]] = {}
    for item in raw:
        inner = item.get("function")
        name = inner["name"] if isinstance(inner, dict) else item["name"]
        joined[name] = list(item.get("fixtures", ()))
        for key in ("mockResponse", "response", "template"):
            if key in item:
                joined[name].insert(0, {"result": item[key]})
    beside = rest.get("fixtures", {})
    if not isinstance(beside, dict):
        raise ConfigError(
            f"{origin}: 'fixtures' beside the tools must be an object: tool to a list of fixtures"
        )
    for name, items in (*beside.items(), *given.items()):
        joined.setdefault(name, []).extend(items)
    return {name: items for name, items in joined.items() if items}, rest.get("default", default)


def mock_of(value: Json, origin: str) -> Mock:
    """The mocked tools of decoded definitions, which echo what no fixture answers, as DeepFabric's do."""
    read = parse_definitions(value, origin)
    given, default = _join_fixtures(read.raw, read.rest, {}, _ECHO, origin)
    return Mock(read.tools, fixtures=given, default=default)
