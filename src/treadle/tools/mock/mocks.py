"""Mocked tools: they answer from their definitions, fixtures, templates or a model.

Every result is marked as simulated. A call that nothing answers is an error and never an invented success. A tool
keeps the effect of its definition, for training data, although nothing outside changes.
A file has tool definitions in any known format, with answers (and `default`, `simulator`) beside the tools or in
each tool:

    {"tools": [{"name": "weather", "parameters": {...},
      "response": "no news of {{city}}",
      "fixtures": [{"match": {"city": "Oslo"}, "result": {"celsius": 4}},
                   {"match": {"city": {"$regex": "^New "}}, "results": ["first", {"$error": "second fails"}]},
                   {"when": {"paid": true}, "result": "{{city}} is fine", "set": {"seen": "{{city}}"}},
                   {"match": {"city": ""}, "error": "there is no city {{city}}"}]}],
     "fixtures": {"weather": [...]}, "responses": {"weather": ...},
     "simulator": {"model": "openai:gpt-5-mini", "seed": 1, "cache": "answers"}}

The fixture with the most criteria answers; if several have the same number, the last of them. Answers may contain
placeholders: `{{name}}` is an argument (or a part of it: `{{name.inner}}`), its default or null if it is missing;
`{{state.name}}` is a value set earlier in this run; `{{call_count}}` is the number of calls of the tool in this
run; `{{arguments}}` is the object of all arguments.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.core.spec import PartSpec
from treadle.core.types import Json, ToolSpec
from treadle.tools.context import ToolContext
from treadle.tools.mock.fixtures import Fixture, FixtureLike, fill, has_places, rank_fixtures, read_fixtures
from treadle.tools.protocol import ToolOutput
from treadle.tools.schema.tool_definitions import (
    MOCK_FIELDS,
    Definitions,
    Shape,
    parse_definitions,
    read_definitions,
    write_definitions,
)
from treadle.tools.schema.validation import ArgumentChecker, OutputChecker

if TYPE_CHECKING:
    from treadle.models.protocol import Model
    from treadle.tools.mock.simulator import Simulator

STATE = "mock"
MAX_HISTORY = 50
"""How many earlier calls a simulator is told about."""
MAX_HISTORY_CHARS = 4_000
"""The length to which an earlier result is shortened for a simulator."""
_ECHO = "echo"
_FILE_FIELDS = ("fixtures", "responses", "default", "simulator")


class Earlier(Struct, frozen=True, omit_defaults=True):
    """A call that was made earlier in the run."""

    tool: str
    arguments: Json
    result: str
    is_error: bool = False


class _Memory(Struct, omit_defaults=True):
    """The state of a run's mocked tools."""

    counts: dict[str, int] = {}
    """Numbers of calls by tool, and of uses by `tool#fixture`, if answers depend on them."""
    values: dict[str, Json] = {}
    history: list[Earlier] = []
    """The earlier calls. Only kept for a simulator."""


class _World:
    """The data that the mocked tools of one run share while a process drives it."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        """A lock that makes calls wait for each other, even if code makes several at once."""
        self.state: bytes | None = None
        """The state of a run without a sandbox."""


class Mock:
    """A toolset of mocked tools. See `Toolset`."""

    def __init__(
        self,
        definitions: Sequence[ToolSpec] | Definitions | dict[str, Json] | str | Path,
        *,
        fixtures: Mapping[str, Sequence[FixtureLike]] | None = None,
        templates: Mapping[str, Json] | None = None,
        default: Json = msgspec.UNSET,
        simulator: "Simulator | Model | dict[str, Json] | str | None" = None,
    ) -> None:
        """Make a toolset from `definitions`: tools, the path of a file with tools, or the content of such a file.

        `templates` maps names of tools to their answers.

        A call is answered by the fixture that fits best, then by the template, then by the `simulator`, a model, or
        without one by `default`: a template, or `echo` for the object that DeepFabric's mock component returns.
        Arguments of this class take precedence over the file. Raises: `ConfigError`.
        """
        given: dict[str, Json] = {"fixtures": fixtures, "templates": templates, "default": default}
        origin, is_own = definitions, simulator is not None
        folder = None
        if isinstance(definitions, str | Path):
            folder = Path(definitions).expanduser().parent
            definitions = read_definitions(definitions)
        elif isinstance(definitions, dict):
            definitions = parse_definitions(definitions, "the definitions of the mock")
        tools = definitions.tools if isinstance(definitions, Definitions) else tuple(definitions)
        answers: dict[str, list[FixtureLike]] = {tool.name: [] for tool in tools}
        if isinstance(definitions, Definitions):
            rest = definitions.rest
            _add_written(definitions, answers)
            default = rest.get("default", msgspec.UNSET) if default is msgspec.UNSET else default
            if folder is not None and simulator is None and rest.get("simulator") is not None:
                simulator = _read_simulator(rest["simulator"], folder)
        _add(answers, _as_fixtures(templates or {}))
        _add(answers, fixtures or {})
        self.default = default
        self.simulator = _as_simulator(simulator)
        self._tools = tuple([MockTool(self, tool, answers[tool.name]) for tool in tools])
        self.part = _part_of(origin, given, self.simulator if is_own else None)

    def tools(self) -> "tuple[MockTool, ...]":
        return self._tools


class MockTool:
    """A mocked tool."""

    def __init__(self, mock: Mock, spec: ToolSpec, fixtures: Iterable[FixtureLike]) -> None:
        # The calls of a step run one at a time, because a call may set what the next one sees.
        self.spec = replace(spec, is_concurrent=False)
        self.find_fault = ArgumentChecker(spec.parameters).find_fault
        self._mock = mock
        self._find_output_fault = OutputChecker(spec.output_schema or {}).find_fault
        properties = spec.parameters.get("properties", {})
        self._absent: dict[str, Json] = {
            name: schema.get("default") if isinstance(schema, dict) else None
            for name, schema in properties.items()
        }
        """The values of arguments that are missing in a call."""
        self.use(fixtures)

    def use(self, fixtures: Iterable[FixtureLike]) -> None:
        """Replace the tool's fixtures. Raises: `ConfigError` for one that cannot be used; then nothing changes."""
        name = self.spec.name
        read = read_fixtures(name, fixtures, self.spec.parameters)
        rules = rank_fixtures(read)
        for answer in (answer for rule in rules for answer in rule.answers()):
            if not isinstance(answer, str) and not has_places(answer) and (fault := self._misfit(answer)):
                raise ConfigError(
                    f"a fixture of {name!r} has a result that breaks its output schema: {fault}"
                )
        self.fixtures = read
        self._rules = rules
        is_default_counting = "call_count" in repr(self._mock.default)
        self._is_counted = is_default_counting or any(rule.is_counting for rule in rules)

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> ToolOutput:
        """See `Tool.call`. A call that nothing answers is an error."""
        world = await context.scope.get(STATE, lambda: nullcontext(_World()))
        async with world.lock:
            kept = world.state if context.sandbox is None else context.sandbox.read_state(STATE)
            memory = _Memory() if kept is None else msgspec.json.decode(kept, type=_Memory)
            output = await self._answer(arguments, memory)
            state = msgspec.json.encode(memory)
            if state == (kept or b"{}"):
                return output
            if context.sandbox is None:
                world.state = state
            else:
                context.sandbox.write_state(STATE, state)
        return output

    def choose(self, arguments: Mapping[str, Json], state: Mapping[str, Json]) -> Fixture | None:
        """Return the fixture that answers a call, given the values that were set in its run, or `None`."""
        return next((rule.fixture for rule in self._rules if rule.is_fit(arguments, state)), None)

    async def _answer(self, arguments: dict[str, Json], memory: _Memory) -> ToolOutput:
        name, simulator = self.spec.name, self._mock.simulator
        known = {**self._absent, **arguments, "arguments": arguments, "state": memory.values}
        if self._is_counted:
            memory.counts[name] = known["call_count"] = memory.counts.get(name, 0) + 1
        rule = next((rule for rule in self._rules if rule.is_fit(arguments, memory.values)), None)
        if rule is not None:
            used = 0
            if rule.fixture.results:
                key = f"{name}#{rule.key}"
                used = memory.counts.get(key, 0)
                memory.counts[key] = used + 1
            answer, is_error = rule.answer(used)
            output = self._to_output(fill(answer, known), is_error=is_error)
            memory.values |= {key: fill(value, known) for key, value in rule.fixture.set.items()}
        elif simulator is not None:
            output = await simulator.answer(self.spec, arguments, memory.history)
        else:
            output = self._answer_by_default(arguments, known)
        if simulator is not None:
            text = output.content
            if len(text) > MAX_HISTORY_CHARS:
                text = f"{text[: MAX_HISTORY_CHARS // 2]} … {text[-MAX_HISTORY_CHARS // 2 :]}"
            memory.history.append(Earlier(name, arguments, text, output.is_error))
            del memory.history[:-MAX_HISTORY]
        return output

    def _answer_by_default(self, arguments: dict[str, Json], known: Mapping[str, Json]) -> ToolOutput:
        name, default = self.spec.name, self._mock.default
        if default is msgspec.UNSET:
            given = msgspec.json.encode(arguments).decode()
            return self._to_output(
                f"the mock of {name} has no fixture for the arguments {given}", is_error=True
            )
        if default != _ECHO:
            return self._to_output(fill(default, known))
        echo = {
            "tool": name,
            "description": self.spec.description,
            "input_received": arguments,
            "mock_result": f"Successfully executed {name}",
            "status": "success",
        }
        structured = echo if self.spec.output_schema is None else None
        return ToolOutput(msgspec.json.encode(echo).decode(), is_simulated=True, structured=structured)

    def _to_output(self, answer: Json, *, is_error: bool = False) -> ToolOutput:
        if isinstance(answer, str):
            return ToolOutput(answer, is_error=is_error, is_simulated=True)
        fault = None if is_error else self._misfit(answer)
        if fault is not None:
            text = f"the mock of {self.spec.name} has a result that breaks its output schema: {fault}"
            return ToolOutput(text, is_error=True, is_simulated=True)
        text = "" if answer is None else msgspec.json.encode(answer).decode()
        return ToolOutput(text, is_error=is_error, is_simulated=True, structured=answer)

    def _misfit(self, answer: Json) -> str | None:
        return None if self.spec.output_schema is None else self._find_output_fault(answer)


def mock(text: str = "", **settings: Any) -> Mock:
    """Return the mocked tools of a file: `mock:tools.json`. `settings` are arguments of `Mock`.

    Raises: `ConfigError`.
    """
    if not text and "definitions" not in settings:
        raise ConfigError("mock: name a file of definitions, as in mock:tools.json")
    return Mock(text, **settings) if text else Mock(**settings)


def _part_of(
    definitions: Sequence[ToolSpec] | Definitions | dict[str, Json] | str | Path,
    given: Mapping[str, Json],
    simulator: "Simulator | None",
) -> PartSpec:
    """Return the part that describes a mock; `given` holds the arguments of `Mock` that are JSON."""
    settings: dict[str, Json] = {}
    if isinstance(definitions, Definitions):
        settings["definitions"] = {**definitions.rest, "tools": list(definitions.raw)}
    elif isinstance(definitions, dict):
        settings["definitions"] = definitions
    elif not isinstance(definitions, str | Path):
        settings["definitions"] = write_definitions(definitions, Shape.TREADLE)[0]
    settings |= {
        key: msgspec.to_builtins(item) for key, item in given.items() if item not in (None, msgspec.UNSET)
    }
    if simulator is not None:
        if simulator.part is None:
            return PartSpec(name="mock:", missing="the model of its simulator is an object of the program")
        settings["simulator"] = {"model": simulator.part.name, **(simulator.part.settings or {})}
    name = "mock" if "definitions" in settings else f"mock:{definitions}"
    return PartSpec(name=name, settings=settings or None)


def mock_of(value: Json, origin: str) -> Mock:
    """Return the mocked tools of decoded definitions. By default they echo calls like DeepFabric's.

    A simulator in the definitions is ignored: data from elsewhere must not spend money. Raises: `ConfigError`.
    """
    read = parse_definitions(value, origin)
    return Mock(read, default=read.rest.get("default", _ECHO))


def _as_fixtures(templates: Mapping[str, Json]) -> dict[str, list[FixtureLike]]:
    return {name: [Fixture(result=template)] for name, template in templates.items()}


def _add(answers: dict[str, list[FixtureLike]], more: Mapping[str, Sequence[FixtureLike]]) -> None:
    for name, items in more.items():
        if name not in answers:
            hint = did_you_mean(name, answers, f"the tools are {', '.join(answers)}")
            raise ConfigError(f"there are fixtures for {name!r}, which is not a tool of this mock{hint}")
        if not isinstance(items, list | tuple):
            raise ConfigError(f"the fixtures of {name!r} are {items!r}; they must be a list")
        answers[name].extend(items)


def _add_written(read: Definitions, answers: dict[str, list[FixtureLike]]) -> None:
    """Add the answers of a file: first those inside its tools, then those outside."""
    _check_fields(read.rest, _FILE_FIELDS, "the file")
    for tool, item in zip(read.tools, read.raw, strict=True):
        _check_fields(item, tuple(MOCK_FIELDS), repr(tool.name))
        for key in ("mockResponse", "template", "response"):
            if key in item:
                _add(answers, _as_fixtures({tool.name: item[key]}))
        _add(answers, {tool.name: item.get("fixtures", ())})
    for key in ("responses", "fixtures"):
        beside = read.rest.get(key) or {}
        if not isinstance(beside, dict):
            raise ConfigError(f"{key!r} beside the tools is {beside!r}; it must be an object, by tool")
        _add(answers, _as_fixtures(beside) if key == "responses" else beside)


def _check_fields(given: Iterable[str], known: Sequence[str], where: str) -> None:
    for key in given:
        hint = did_you_mean(key, known, cutoff=0.8)
        if hint and key not in known:
            raise ConfigError(f"{where} has {key!r}{hint}")


def _read_simulator(value: Json, folder: Path) -> "Simulator":
    from treadle.tools.mock.simulator import Simulator

    options = {"model": value} if isinstance(value, str) else value
    kinds = {"model": str, "seed": int, "cache": str}
    if not isinstance(options, dict) or "model" not in options:
        raise ConfigError(
            f"'simulator' is {value!r}; it must be a model's name, or an object with its 'model'"
        )
    for key, item in options.items():
        if key not in kinds or not isinstance(item, kinds[key]) or isinstance(item, bool):
            raise ConfigError(
                f"'simulator' has {key!r}: {item!r}; it takes model and cache (strings) and seed (a number)"
            )
    cache = folder / options["cache"] if "cache" in options else None
    return Simulator(options["model"], seed=options.get("seed"), cache=cache)


def _as_simulator(given: "Simulator | Model | dict[str, Json] | str | None") -> "Simulator | None":
    if given is None:
        return None
    from treadle.tools.mock.simulator import Simulator

    if isinstance(given, dict):
        return _read_simulator(given, Path())
    return given if isinstance(given, Simulator) else Simulator(given)
