"""The mapping of a DeepFabric configuration to Treadle's keys, with a note for each key."""

import re
from pathlib import PurePath
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.documents import read_data
from treadle.core.errors import ConfigError, MistakesError
from treadle.core.places import Document, KeyPath, Problem
from treadle.core.registry import did_you_mean
from treadle.core.types import Json
from treadle.tools.schema.tool_definitions import parse_definitions
from treadle.tools.vfs import NAMES

_KEYS = read_data(__package__, "deepfabric_keys")
_KNOWN = frozenset((*_KEYS["renamed"], *_KEYS["left_out"], *_KEYS["lists"]["special"].split()))
_DEFAULTS = {"provider": "openai", "model": "gpt-4o", "temperature": 0.2}
"""The model of DeepFabric if its configuration names none."""
_NEAR = 0.75
"""The similarity from which on an unknown key is a misspelling of a known key."""


class Mapped(Struct, frozen=True):
    """A configuration of DeepFabric in Treadle's keys."""

    value: dict[str, Json]
    origins: dict[KeyPath, KeyPath]
    """The path in the file of each key that was mapped."""
    notes: tuple[str, ...]
    """The notes, those about what changes the results first."""
    problems: tuple[Problem, ...]


def is_deepfabric(value: dict[str, object]) -> bool:
    """Return whether a configuration has keys of DeepFabric, and no section that only Treadle has."""
    if value.keys() & {"models", "tools", "quality", "limits", "publish", "name", "seed"}:
        return False
    if value.keys() & {"llm", "huggingface", "kaggle", "evaluation", "deepfabric_cloud", *_KEYS["old"]}:
        return True
    return any(
        isinstance(section := value.get(name), dict)
        and not section.keys().isdisjoint(_KEYS["lists"][name].split())
        for name in ("topics", "generation", "output")
    )


def map_deepfabric(document: Document) -> Mapped:
    """Return the configuration of a DeepFabric file in Treadle's keys.

    Raises: `ConfigError` for a file from before DeepFabric 4, with the new name of each section.
    """
    value = document.value
    if old := [key for key in _KEYS["old"] if key in value]:
        lines = [f"{document.where((key,))}: {key} is now {_KEYS['old'][key]}" for key in old]
        raise MistakesError(
            "\n".join(
                [f"{str(document.path)!r} is from before DeepFabric 4; rename its sections first:", *lines]
            )
        )
    mapper = _Mapper(document)
    mapper.map_names()
    mapper.map_models()
    mapper.map_topics()
    mapper.map_texts()
    mapper.map_conversation()
    mapper.map_tools()
    mapper.map_output()
    mapper.map_rest()
    return mapper.result()


def dedent_sections(text: str, line: int) -> str | None:
    """Return `text` with all lines from number `line`, counted from 1, without their common indentation.

    `None` if these lines have no common indentation. The README of DeepFabric 4.6 to 4.13 ends with such lines.
    """
    lines = text.splitlines()
    rest = lines[line - 1 :]
    indent = len(rest[0]) - len(rest[0].lstrip(" ")) if rest else 0
    if not indent or any(item.strip() and not item.startswith(" " * indent) for item in rest):
        return None
    return "\n".join([*lines[: line - 1], *[item[indent:] for item in rest]]) + "\n"


class _Mapper:
    """The state of one mapping."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._source = document.value
        self._target: dict[str, Any] = {}
        self._origins: dict[KeyPath, KeyPath] = {}
        self._notes: list[tuple[bool, KeyPath, str]] = []
        self._problems: list[Problem] = []
        self._done: set[str] = set()
        self._moved: dict[str, str] = {}

    def result(self) -> Mapped:
        """Return the mapped configuration, with the notes of each class in the order of the file."""
        place_of = self._document.place_of
        told = sorted(self._notes, key=lambda note: (not note[0], place_of(note[1]) or (0, 0)))
        notes = [
            f"{'changes results' if is_change else 'renamed'}: {self._document.where(path)}: "
            f"{'.'.join(map(str, path))}: {text}"
            for is_change, path, text in told
        ]
        return Mapped(self._target, self._origins, tuple(notes), tuple(self._problems))

    def map_names(self) -> None:
        for key, right in _KEYS["misplaced"].items():
            if self._find(key) is not None and self._find(right) is None:
                self._moved[right] = key
                self._done.add(key)
                self._note(key, f"DeepFabric ignores it there; it was read as {right}", is_change=True)
        for key, target in _KEYS["renamed"].items():
            if (value := self._take(key)) is not None:
                self._put(target, value, key)
                remark = _KEYS["remarks"].get(key)
                if remark is not None or key != target:
                    text = f"it is {target} here{f'; {remark}' if remark else ''}"
                    self._note(key, text, is_change=remark is not None)
        for key, text in _KEYS["left_out"].items():
            if self._take(key) is not None:
                self._note(key, f"left out; {text}", is_change=key not in _KEYS["lists"]["harmless"].split())

    def map_models(self) -> None:
        for section, role in (("generation", "default"), ("topics", "topics")):
            table, source = self._table_of(section)
            self._put(f"models.{role}", table, source)
            text = f"the model of {section} is models.{role}: {table['model']!r}"
            is_named = self._find(f"{source}.model") is not None or self._find("llm.model") is not None
            self._note(source, text if is_named else f"{text}, DeepFabric's default")
        retries = self._find("generation.rate_limit.max_retries")
        if isinstance(retries, int):
            for role in ("default", "topics"):
                self._put(f"models.{role}.max_attempts", retries + 1, "generation.rate_limit")

    def _table_of(self, section: str) -> tuple[dict[str, Any], str]:
        """Return the model settings of a section, and the key that names the model."""
        found: dict[str, Any] = {}
        for key, default in (*_DEFAULTS.items(), ("base_url", None)):
            own, shared = self._take(f"{section}.llm.{key}"), self._take(f"llm.{key}")
            found[key] = own if own is not None else shared if shared is not None else default
        provider, url = str(found["provider"]), found["base_url"]
        has_own = self._find(f"{section}.llm") is not None
        source = f"{section}.llm" if has_own else "llm" if self._find("llm") is not None else section
        if provider == "ollama" and isinstance(url, str) and url.rstrip("/").endswith("/v1"):
            # Servers of OpenAI's format had to be called `ollama`, because DeepFabric ignores their URL otherwise.
            provider = "openai"
            self._note(
                source, f"the server at {url!r} speaks OpenAI's format, so its provider is 'openai' here"
            )
            found["api_key_env"] = ""
        table = {"model": f"{provider}:{found['model']}", "temperature": found["temperature"]}
        table |= {key: found[key] for key in ("base_url", "api_key_env") if found.get(key) is not None}
        if (limit := self._take(f"{section}.max_tokens")) is not None:
            table["max_output_tokens"] = limit
            self._note(f"{section}.max_tokens", "it is max_output_tokens of the model here")
        return table, source

    def map_topics(self) -> None:
        mode, style = self._take("topics.mode"), self._take("topics.prompt_style")
        if mode in (None, "graph") and style in ("isolated", "anchored"):
            self._put("topics.mode", "tree", "topics.prompt_style")
            self._note(
                "topics.prompt_style", f"{style!r} has no connections between topics, so the mode is 'tree'"
            )
        elif mode is None:
            self._put("topics.mode", "graph", "topics")
            self._note("topics", "it has no mode; 'graph' is DeepFabric's default since 4.12")
        else:
            self._put("topics.mode", mode, "topics.mode")
        if style == "default":
            self._note(
                "topics.prompt_style",
                "left out; every expansion sees its path and the existing topics",
                is_change=True,
            )
        for key, default in (("depth", 3), ("degree", 10)):
            if self._find(f"topics.{key}") is None:
                self._put(f"topics.{key}", default, "topics")
                self._note("topics", f"it has no {key}; {default} is DeepFabric's default")

    def map_texts(self) -> None:
        """Map the prompts: the agent has the system message of its rows, and other texts guide the scenarios."""
        prompt, more = self._take("generation.system_prompt"), self._take("generation.instructions")
        system = self._take("output.system_prompt")
        if system is None:
            guidance = more
            if prompt is not None:
                self._put_system(prompt, "generation.system_prompt")
        else:
            guidance = "\n\n".join([str(text).strip() for text in (prompt, more) if text])
            self._put_system(system, "output.system_prompt")
            if prompt is not None:
                text = "it is a part of generation.guidance here, for the writer of scenarios"
                self._note("generation.system_prompt", text)
        if more:
            self._note(
                "generation.instructions", "it is generation.guidance here, for the writer of scenarios"
            )
        if guidance:
            source = "generation.instructions" if more else "generation.system_prompt"
            self._put("generation.guidance", guidance, source)

    def _put_system(self, text: Json, source: str) -> None:
        """Map the system message: the agent works with it, and the rows have exactly this text."""
        self._put("generation.instructions", text, source)
        told = "generation.instructions here"
        if self._find("output.include_system_message") is not False:
            self._put("output.system_message", text, source)
            told = "generation.instructions and output.system_message here, for the agent and the rows"
        self._note(source, f"it is {told}")

    def map_conversation(self) -> None:
        path = "generation.conversation"
        form, style = self._take(f"{path}.type"), self._take(f"{path}.reasoning_style")
        mode = self._take(f"{path}.agent_mode")
        if form == "chain_of_thought":
            form = "cot"
            self._note(f"{path}.type", "it is 'cot' here")
        if style in ("structured", "hybrid"):
            self._note(f"{path}.reasoning_style", f"{style!r} is 'agent' here, as in DeepFabric since 4.0")
            style = "agent"
        if self._find("generation.tools") is not None or mode is not None:
            source = (
                f"{path}.agent_mode" if mode is not None else f"{path}.type" if form else "generation.tools"
            )
            self._note(source, "conversations with tools have the type 'agent' here")
            if style == "freetext":
                self._note(
                    f"{path}.reasoning_style",
                    "it is 'agent' here: the thought of each step is kept with it",
                    is_change=True,
                )
                style = "agent"
            self._put(f"{path}.type", "agent", source)
        else:
            self._put(f"{path}.type", form or "basic", f"{path}.type" if form else "generation")
        if style is not None:
            self._put(f"{path}.reasoning", style, f"{path}.reasoning_style")
        if style == "agent":
            # Many models make calls without a text beside them, and DeepFabric keeps such rows.
            self._put("quality.filters", {"reasoning": False}, f"{path}.reasoning_style")
        turns = [self._take(f"{path}.{key}") for key in ("min_turns", "max_turns")]
        for key, value, default in zip(("min_turns", "max_turns"), turns, (2, 4), strict=True):
            if mode == "multi_turn":
                self._put(f"{path}.{key}", default if value is None else value, f"{path}.{key}")
            elif value is not None:
                self._note(f"{path}.{key}", "left out; it is for the agent_mode 'multi_turn'")

    def map_tools(self) -> None:
        path = "generation.tools"
        if (retries := self._take("generation.sample_retries")) is not None:
            count = retries + 1 if isinstance(retries, int) else retries
            self._put("generation.sample_attempts", count, "generation.sample_retries")
            self._note("generation.sample_retries", "generation.sample_attempts counts the first attempt too")
        if (steps := self._take(f"{path}.max_agent_steps")) is not None:
            count = steps + 1 if isinstance(steps, int) else steps
            self._put("tools.max_steps", count, f"{path}.max_agent_steps")
            self._note(f"{path}.max_agent_steps", "tools.max_steps counts the step with the answer too")
        seed = self._take(f"{path}.scenario_seed")
        if isinstance(seed, dict):
            key = self._moved.get(f"{path}.scenario_seed", f"{path}.scenario_seed")
            self._put("tools.files", seed.get("files") or {}, f"{key}.files")
            self._note(key, "its files are tools.files here; the writer of scenarios sees them")
            for name in seed:
                if name != "files":
                    self._note(f"{key}.{name}", "left out; only files can be given", is_change=True)
        given = {
            key: self._take(f"{path}.{key}")
            for key in (
                "spin_endpoint",
                "components",
                "available",
                "tools_endpoint",
                "custom",
                "tool_execute_path",
            )
        }
        if self._find(path) is not None:
            use = self._toolsets(given, path)
            if use:
                self._put("tools.use", use, f"{path}.components" if given["components"] else path)

    def _toolsets(self, given: dict[str, Any], path: str) -> list[Any]:
        """Return the toolsets of the section of tools."""
        endpoint, use = given["spin_endpoint"], list[Any]()
        components = dict(given["components"]) if isinstance(given["components"], dict) else {}
        # A component is a list of tools, or a flag for all of them.
        components = {name: tools for name, tools in components.items() if tools is not False}
        for name in ("builtin", "vfs"):
            if components.get(name) is True:
                components[name] = list(NAMES)
        components = {name: None if tools is True else tools for name, tools in components.items()}
        named = {
            **{f"{path}.components.{name}": components.pop(name, None) for name in ("builtin", "vfs")},
            f"{path}.available": given["available"],
            **{f"{path}.components.{name}": tools for name, tools in components.items()},
        }
        for key, tools in named.items():
            if not isinstance(tools, list | None):
                text = f"it is {tools!r:.80}; give a list of the names of tools"
                self._problems.append(Problem(_split(key), text))
        local = [
            name
            for key, tools in list(named.items())[:3]
            if isinstance(tools, list)
            for name in self._known(tools, key, has_service=endpoint is not None)
        ]
        if local or not (components or given["custom"]):
            names = list(dict.fromkeys(local))
            use.append({"name": "vfs", "settings": {"names": names}} if names else "vfs")
            text = "the built-in tools are the toolset 'vfs' here, which works in the sandbox of each sample"
            self._note(path, f"{text}{', without a server' if endpoint else ''}")
        settings = {"endpoint": endpoint, "tool_execute_path": given["tool_execute_path"]}
        settings = {key: value for key, value in settings.items() if value is not None}
        for name, tools in components.items():
            key = f"{path}.components.{name}"
            if endpoint is None:
                text = "its tools run on a service; give its address with 'spin_endpoint'"
                self._problems.append(Problem(_split(key), text))
                continue
            more = {"component": name, "names": tools or None, "tools_endpoint": given["tools_endpoint"]}
            use.append(
                {"name": "spin", "settings": settings | {k: v for k, v in more.items() if v is not None}}
            )
            self._note(key, f"it is the toolset 'spin' with the component {name!r} here")
        if given["custom"]:
            use += self._custom(given["custom"], settings, f"{path}.custom")
        return use

    def _known(self, names: list[Json], key: str, *, has_service: bool) -> list[str]:
        """Return the built-in tools in a list. Other names are left out, as DeepFabric leaves out what its service
        does not offer; without a service, a name that is similar to a built-in tool is a mistake."""
        known = [name for name in names if name in NAMES]
        others: list[str] = []
        for name in [str(name) for name in names if name not in NAMES]:
            hint = "" if has_service else did_you_mean(name, NAMES, cutoff=_NEAR)
            if hint:
                text = f"there is no built-in tool {name!r}{hint} they are {', '.join(NAMES)}"
                self._problems.append(Problem(_split(key), text))
            else:
                others.append(name)
        if others and len(others) == len(names):
            text = f"none of these tools is built in; the built-in ones are {', '.join(NAMES)}"
            self._problems.append(Problem(_split(key), text))
        elif others:
            text = f"left out: {', '.join(others)}; tools of a service are named below its component"
            self._note(key, text, is_change=True)
        return known

    def _custom(self, tools: Json, settings: dict[str, Json], key: str) -> list[Any]:
        """Return the toolset of tools that the file defines. Without a service their results are simulated."""
        if "endpoint" not in settings:
            self._put("tools.definitions", tools, key)
            text = "they are tools.definitions here, and their results are simulated"
            self._note(key, text, is_change=True)
            return []
        try:
            specs = parse_definitions({"tools": tools}, "the custom tools").tools
        except ConfigError as error:
            self._problems.append(Problem(_split(key), str(error)))
            return []
        self._note(key, "they are the toolset 'spin' without a component here")
        own = {"component": None, "tools": msgspec.to_builtins(specs)}
        return [{"name": "spin", "settings": settings | own}]

    def map_output(self) -> None:
        if (path := self._take("output.save_as")) is not None:
            folder = PurePath(str(path)).with_suffix("")
            self._put("output.path", str(folder), "output.save_as")
            self._put("name", re.sub(r"[^\w.-]", "-", folder.name), "output.save_as")
            self._note(
                "output.save_as",
                f"the dataset is the folder {str(folder)!r} here, and its name {folder.name!r}",
            )
        if self._find("output.num_samples") is None:
            self._put("generation.num_samples", 3, "output")
            self._note("output", "it has no num_samples; 3 is DeepFabric's default")
        form = self._take("output.format")
        formats = ["custom" if form == "custom" else "deepfabric"]
        formatters = self._take("output.formatters")
        for item in formatters if isinstance(formatters, list) else ():
            template = str(item.get("template") if isinstance(item, dict) else item).rpartition("/")[2]
            if (known := _KEYS["formatters"].get(template)) is not None:
                formats.append(known)
                self._note("output.formatters", f"{template!r} is the format {known!r} here")
            else:
                text = f"{template!r} is left out; see output.formats for the formats here"
                self._note("output.formatters", text, is_change=True)
        self._put("output.formats", list(dict.fromkeys(formats)), "output.format" if form else "output")

    def map_rest(self) -> None:
        """Report the keys that DeepFabric does not have.

        A key that is similar to one of its keys is a mistake, others are notes.
        """
        for path in self._leaves((), self._source):
            name = ".".join(map(str, path))
            if any(name == done or name.startswith(f"{done}.") for done in self._done):
                continue
            section, _, key = name.rpartition(".")
            below = [
                known[len(section) + bool(section) :].partition(".")[0]
                for known in _KNOWN
                if not section or known.startswith(f"{section}.")
            ]
            if hint := did_you_mean(key, set(below), cutoff=_NEAR):
                self._problems.append(Problem(path, f"DeepFabric has no such key{hint}"))
            else:
                self._note(name, "left out; DeepFabric has no such key and ignores it")

    def _leaves(self, path: KeyPath, value: Json) -> list[KeyPath]:
        """Return the paths of the keys below `path` that are not sections."""
        name = ".".join(map(str, path))
        is_section = not name or any(known.startswith(f"{name}.") for known in _KNOWN)
        if name in self._done or not (is_section and isinstance(value, dict)):
            return [path] if path else []
        return [leaf for key, item in value.items() for leaf in self._leaves((*path, key), item)]

    def _find(self, key: str) -> Json:
        """Return the value of a key, which has dots between its sections; `None` if the file does not have
        the key."""
        value: Json = self._source
        for part in _split(self._moved.get(key, key)):
            value = value.get(str(part)) if isinstance(value, dict) else None
        return value

    def _take(self, key: str) -> Json:
        """Return the value of a key, and record that the key is mapped or left out with a note."""
        self._done.add(key)
        return self._find(key)

    def _put(self, target: str, value: Json, source: str) -> None:
        *sections, last = target.split(".")
        table = self._target
        for name in sections:
            table = table.setdefault(name, {})
        table[last] = value
        self._origins[_split(target)] = _split(self._moved.get(source, source))

    def _note(self, key: str, text: str, *, is_change: bool = False) -> None:
        """Add a note about a key. `is_change` says that the rows differ from those that DeepFabric would make."""
        self._notes.append((is_change, _split(self._moved.get(key, key)), text))


def _split(key: str) -> KeyPath:
    return tuple(key.split("."))
