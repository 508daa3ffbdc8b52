"""The mapping of a DeepFabric configuration to Treadle's keys, with a note for each key."""

import re
from pathlib import PurePath
from typing import Any

import msgspec

from treadle.core.documents import read_data
from treadle.core.errors import ConfigError, MistakesError
from treadle.core.places import Document, KeyPath, Mapped, Problem
from treadle.core.registry import did_you_mean
from treadle.core.types import Json
from treadle.tools.schema.tool_definitions import parse_definitions
from treadle.tools.vfs import NAMES

_KEYS = read_data(__package__, "deepfabric_keys")
_KNOWN = frozenset((*_KEYS["renamed"], *_KEYS["left_out"], *_KEYS["lists"]["special"].split()))
_NEAR = 0.75
"""The similarity from which on an unknown key is a misspelling of a known key."""


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
        self._target: dict[str, Any] = {}
        self._origins: dict[KeyPath, KeyPath] = {}
        self._notes: list[tuple[bool, KeyPath, str]] = []
        self._problems: list[Problem] = []
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
        """Map the keys that the data file lists: misplaced, renamed and left out."""
        for key, right in _KEYS["misplaced"].items():
            if self._find(key) is not None and self._find(right) is None:
                self._moved[right] = key
                self._note(key, f"DeepFabric ignores it there; it was read as {right}", is_change=True)
        for key, target in _KEYS["renamed"].items():
            section, _, name = key.rpartition(".")
            if (value := self._find(key)) is not None:
                more = key in _KEYS["one_more"] and isinstance(value, int)
                self._put(target, value + 1 if more else value, key)
                remark = _KEYS["remarks"].get(key)
                told = remark or _KEYS["one_more"].get(key)
                if told is not None or key != target:
                    text = f"it is {target} here{f'; {told}' if told else ''}"
                    self._note(key, text, is_change=remark is not None)
            elif (default := _KEYS["defaults"].get(key)) is not None:
                self._put(target, default, section)
                self._note(section, f"it has no {name}; {default!r} is DeepFabric's default")
        for key, text in _KEYS["left_out"].items():
            if self._find(key) is not None:
                self._note(key, f"left out; {text}", is_change=key not in _KEYS["lists"]["harmless"].split())

    def map_models(self) -> None:
        """Map the models of both sections. A section's own settings precede those of `llm`."""
        retries = self._find("generation.rate_limit.max_retries")
        for section, role in (("generation", "default"), ("topics", "topics")):
            sources = [key for key in (f"{section}.llm", "llm") if self._find(key) is not None]
            source = sources[0] if sources else section
            given = [found for key in sources if isinstance(found := self._find(key), dict)]
            found = {**_KEYS["model"]}
            for table in reversed(given):
                found |= {key: value for key, value in table.items() if value is not None}
            made = {"model": f"{found['provider']}:{found['model']}", "temperature": found["temperature"]}
            if (url := found.get("base_url")) is not None:
                made["base_url"] = url
            if found["provider"] == "ollama" and str(url).rstrip("/").endswith("/v1"):
                # Such servers had to be called `ollama`, because DeepFabric ignores their URL otherwise.
                made |= {"model": f"openai:{found['model']}", "api_key_env": ""}
                text = f"the server at {url!r} speaks OpenAI's format, so its provider is 'openai' here"
                self._note(source, text)
            if (limit := self._find(f"{section}.max_tokens")) is not None:
                made["max_output_tokens"] = limit
                self._note(f"{section}.max_tokens", "it is max_output_tokens of the model here")
            self._put(f"models.{role}", made, source)
            is_named = any(table.get("model") is not None for table in given)
            text = f"the model of {section} is models.{role}: {made['model']!r}"
            self._note(source, text if is_named else f"{text}, DeepFabric's default")
            if isinstance(retries, int):
                self._put(f"models.{role}.max_attempts", retries + 1, "generation.rate_limit")

    def map_topics(self) -> None:
        """Map the style of graphs, which decides whether topics have connections."""
        style, key = self._find("topics.prompt_style"), "topics.prompt_style"
        if self._target["topics"]["mode"] == "graph" and style in ("isolated", "anchored"):
            self._put("topics.mode", "tree", key)
            self._note(key, f"{style!r} has no connections between topics, so the mode is 'tree'")
        elif style == "default":
            text = "left out; every expansion sees its path and the existing topics"
            self._note(key, text, is_change=True)

    def map_texts(self) -> None:
        """Map the prompts: the agent has the system message of its rows, and other texts guide the scenarios."""
        guides = {key: self._find(key) for key in ("generation.system_prompt", "generation.instructions")}
        own = "output.system_prompt"
        if (system := self._find(own)) is None:
            own = "generation.system_prompt"
            system = guides.pop(own)
        if system is not None:
            self._put("generation.instructions", system, own)
            told = "generation.instructions here"
            if self._find("output.include_system_message") is not False:
                self._put("output.system_message", system, own)
                told = "generation.instructions and output.system_message here, for the agent and the rows"
            self._note(own, f"it is {told}")
        texts = {key: str(text).strip() for key, text in guides.items() if text}
        for key in texts:
            self._put("generation.guidance", "\n\n".join(texts.values()), key)
            self._note(key, "it is in generation.guidance here, for the writer of scenarios")

    def map_conversation(self) -> None:
        """Map the form of the conversations. Those with tools have the type `agent`."""
        path = "generation.conversation"
        kind, style = f"{path}.type", f"{path}.reasoning_style"
        form, reasoning = self._find_value(kind), self._find_value(style)
        mode = self._find(f"{path}.agent_mode")
        keys = (f"{path}.agent_mode", kind, "generation.tools")
        source = next((key for key in keys if self._find(key) is not None), "generation")
        if self._find("generation.tools") is not None or mode is not None:
            form = "agent"
            self._note(source, "conversations with tools have the type 'agent' here")
            if reasoning == "freetext":
                reasoning = "agent"
                text = "it is 'agent' here: the thought of each step is kept with it"
                self._note(style, text, is_change=True)
        self._put(kind, form or "basic", source)
        if reasoning is not None:
            self._put(f"{path}.reasoning", reasoning, style)
        if reasoning == "agent":
            # Many models make calls without a text beside them, and DeepFabric keeps such rows.
            self._put("quality.filters", {"reasoning": False}, style)
        for key, default in ((f"{path}.min_turns", 2), (f"{path}.max_turns", 4)):
            value = self._find(key)
            if mode == "multi_turn":
                self._put(key, default if value is None else value, key)
            elif value is not None:
                self._note(key, "left out; it is for the agent_mode 'multi_turn'")

    def map_tools(self) -> None:
        """Map the toolsets, and the files that they work on."""
        path = "generation.tools"
        if isinstance(seed := self._find(f"{path}.scenario_seed"), dict):
            key = self._moved.get(f"{path}.scenario_seed", f"{path}.scenario_seed")
            self._put("tools.files", seed.get("files") or {}, f"{key}.files")
            self._note(key, "its files are tools.files here; the writer of scenarios sees them")
            for name in [name for name in seed if name != "files"]:
                self._note(f"{key}.{name}", "left out; only files can be given", is_change=True)
        if self._find(path) is not None and (use := self._toolsets(path)):
            is_listed = bool(self._find(f"{path}.components"))
            self._put("tools.use", use, f"{path}.components" if is_listed else path)

    def _toolsets(self, path: str) -> list[Any]:
        """Return the toolsets of the section of tools."""
        endpoint, custom = self._find(f"{path}.spin_endpoint"), self._find(f"{path}.custom")
        service = {"endpoint": endpoint, "tool_execute_path": self._find(f"{path}.tool_execute_path")}
        components, local, use = self._find(f"{path}.components"), list[str](), list[Any]()
        lists = {f"{path}.available": self._find(f"{path}.available")}
        for name, tools in components.items() if isinstance(components, dict) else ():
            # A component is a list of tools, or a flag for all of them.
            if tools is not False:
                lists[f"{path}.components.{name}"] = tools
        for key, tools in lists.items():
            name, is_all = key.rpartition(".")[2], tools is True and key != f"{path}.available"
            if not isinstance(tools, list | None) and not is_all:
                self._fail(key, f"it is {tools!r:.80}; give a list of the names of tools")
            elif name in ("builtin", "vfs", "available"):
                names = list(NAMES) if is_all else tools or []
                local += self._known(names, key, has_service=endpoint is not None)
            elif endpoint is None:
                self._fail(key, "its tools run on a service; give its address with 'spin_endpoint'")
            else:
                names = None if is_all else tools or None
                more = {
                    "component": name,
                    "names": names,
                    "tools_endpoint": self._find(f"{path}.tools_endpoint"),
                }
                use.append({"name": "spin", "settings": _without_none(service | more)})
                self._note(key, f"it is the toolset 'spin' with the component {name!r} here")
        if local or not (use or custom or self._problems):
            names = list(dict.fromkeys(local))
            use.insert(0, {"name": "vfs", "settings": {"names": names}} if names else "vfs")
            text = "the built-in tools are the toolset 'vfs' here, which works in the sandbox of each sample"
            self._note(path, f"{text}{', without a server' if endpoint else ''}")
        return [*use, *self._custom(custom, service, f"{path}.custom")] if custom else use

    def _known(self, names: list[Json], key: str, *, has_service: bool) -> list[str]:
        """Return the built-in tools in a list. Other names are left out, as DeepFabric leaves out what its service
        does not offer; without a service, a name that is similar to a built-in tool is a mistake."""
        known = [name for name in names if name in NAMES]
        others: list[str] = []
        for name in [str(name) for name in names if name not in NAMES]:
            if not has_service and (hint := did_you_mean(name, NAMES, cutoff=_NEAR)):
                self._fail(key, f"there is no built-in tool {name!r}{hint} they are {', '.join(NAMES)}")
            else:
                others.append(name)
        if others and len(others) == len(names):
            self._fail(key, f"none of these tools is built in; the built-in ones are {', '.join(NAMES)}")
        elif others:
            text = f"left out: {', '.join(others)}; tools of a service are named below its component"
            self._note(key, text, is_change=True)
        return known

    def _custom(self, tools: Json, service: dict[str, Json], key: str) -> list[Any]:
        """Return the toolset of tools that the file defines. Without a service their results are simulated."""
        if service["endpoint"] is None:
            self._put("tools.definitions", tools, key)
            text = "they are tools.definitions here, and their results are simulated"
            self._note(key, text, is_change=True)
            return []
        try:
            specs = parse_definitions({"tools": tools}, "the custom tools").tools
        except ConfigError as error:
            self._fail(key, str(error))
            return []
        self._note(key, "they are the toolset 'spin' without a component here")
        own = {"component": None, "tools": msgspec.to_builtins(specs)}
        return [{"name": "spin", "settings": _without_none(service) | own}]

    def map_output(self) -> None:
        """Map the place of the rows and their formats."""
        if (path := self._find("output.save_as")) is not None:
            folder = PurePath(str(path)).with_suffix("")
            self._put("output.path", str(folder), "output.save_as")
            self._put("name", re.sub(r"[^\w.-]", "-", folder.name), "output.save_as")
            text = f"the dataset is the folder {str(folder)!r} here, and its name {folder.name!r}"
            self._note("output.save_as", text)
        form, formatters = self._find("output.format"), self._find("output.formatters")
        formats = ["custom" if form == "custom" else "deepfabric"]
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
        for path in self._leaves((), self._document.value):
            section, _, key = ".".join(map(str, path)).rpartition(".")
            below = {
                known[len(section) + bool(section) :].partition(".")[0]
                for known in _KNOWN
                if not section or known.startswith(f"{section}.")
            }
            if hint := did_you_mean(key, below, cutoff=_NEAR):
                self._problems.append(Problem(path, f"DeepFabric has no such key{hint}"))
            else:
                self._note(".".join(map(str, path)), "left out; DeepFabric has no such key and ignores it")

    def _leaves(self, path: KeyPath, value: Json) -> list[KeyPath]:
        """Return the paths of the unknown keys below `path`, which is unknown or a section."""
        name = ".".join(map(str, path))
        if name in _KNOWN or name in self._moved.values():
            return []
        is_section = not name or any(known.startswith(f"{name}.") for known in _KNOWN)
        if not (is_section and isinstance(value, dict)):
            return [path] if path else []
        return [leaf for key, item in value.items() for leaf in self._leaves((*path, key), item)]

    def _find(self, key: str) -> Json:
        """Return the value of a key, which has dots between its sections; `None` if the file does not have
        the key."""
        value: Json = self._document.value
        for part in _split(self._moved.get(key, key)):
            value = value.get(str(part)) if isinstance(value, dict) else None
        return value

    def _find_value(self, key: str) -> Json:
        """Return the value of a key in Treadle's word for it."""
        value = self._find(key)
        word = _KEYS["values"][key].get(value) if isinstance(value, str) else None
        if word is not None:
            self._note(key, f"{value!r} is {word!r} here")
        return word or value

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

    def _fail(self, key: str, text: str) -> None:
        self._problems.append(Problem(_split(key), text))


def _split(key: str) -> KeyPath:
    return tuple(key.split("."))


def _without_none(table: dict[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in table.items() if value is not None}
