"""The mapping of a DeepFabric configuration to Treadle's keys, with a note for each key."""

import re
from pathlib import PurePath
from typing import Any

import msgspec

from treadle.core.errors import ConfigError, MistakesError
from treadle.core.registry import did_you_mean
from treadle.core.texts.documents import read_data
from treadle.core.texts.places import Document, Mapped
from treadle.core.types import Json
from treadle.jobs.foreign_keys import NEAR, KeyMapper
from treadle.tools.schema.tool_definitions import parse_definitions
from treadle.tools.vfs import NAMES

_KEYS = read_data(__package__, "deepfabric_keys")


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
    mapper = _Mapper(document, _KEYS)
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


class _Mapper(KeyMapper):
    """The state of one mapping."""

    def map_models(self) -> None:
        """Map the models of both sections. A section's own settings precede those of `llm`."""
        retries = self.find("generation.rate_limit.max_retries")
        for section, role in (("generation", "default"), ("topics", "topics")):
            sources = [key for key in (f"{section}.llm", "llm") if self.find(key) is not None]
            source = sources[0] if sources else section
            given = [found for key in sources if isinstance(found := self.find(key), dict)]
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
                self.note(source, text)
            if (limit := self.find(f"{section}.max_tokens")) is not None:
                made["max_output_tokens"] = limit
                self.note(f"{section}.max_tokens", "it is max_output_tokens of the model here")
            self.put(f"models.{role}", made, source)
            is_named = any(table.get("model") is not None for table in given)
            text = f"the model of {section} is models.{role}: {made['model']!r}"
            self.note(source, text if is_named else f"{text}, DeepFabric's default")
            if isinstance(retries, int):
                self.put(f"models.{role}.max_attempts", retries + 1, "generation.rate_limit")

    def map_topics(self) -> None:
        """Map the style of graphs, which decides whether topics have connections."""
        style, key = self.find("topics.prompt_style"), "topics.prompt_style"
        if self.target["topics"]["mode"] == "graph" and style in ("isolated", "anchored"):
            self.put("topics.mode", "tree", key)
            self.note(key, f"{style!r} has no connections between topics, so the mode is 'tree'")
        elif style == "default":
            text = "left out; every expansion sees its path and the existing topics"
            self.note(key, text, is_change=True)

    def map_texts(self) -> None:
        """Map the prompts: the agent has the system message of its rows, and other texts guide the scenarios."""
        guides = {key: self.find(key) for key in ("generation.system_prompt", "generation.instructions")}
        own = "output.system_prompt"
        if (system := self.find(own)) is None:
            own = "generation.system_prompt"
            system = guides.pop(own)
        if system is not None:
            self.put("generation.instructions", system, own)
            told = "generation.instructions here"
            if self.find("output.include_system_message") is not False:
                self.put("output.system_message", system, own)
                told = "generation.instructions and output.system_message here, for the agent and the rows"
            self.note(own, f"it is {told}")
        texts = {key: str(text).strip() for key, text in guides.items() if text}
        for key in texts:
            self.put("generation.guidance", "\n\n".join(texts.values()), key)
            self.note(key, "it is in generation.guidance here, for the writer of scenarios")

    def map_conversation(self) -> None:
        """Map the form of the conversations. Those with tools have the type `agent`."""
        path = "generation.conversation"
        kind, style = f"{path}.type", f"{path}.reasoning_style"
        form, reasoning = self.find_value(kind), self.find_value(style)
        mode = self.find(f"{path}.agent_mode")
        keys = (f"{path}.agent_mode", kind, "generation.tools")
        source = next((key for key in keys if self.find(key) is not None), "generation")
        if self.find("generation.tools") is not None or mode is not None:
            form = "agent"
            self.note(source, "conversations with tools have the type 'agent' here")
            if reasoning == "freetext":
                reasoning = "agent"
                text = "it is 'agent' here: the thought of each step is kept with it"
                self.note(style, text, is_change=True)
        self.put(kind, form or "basic", source)
        if reasoning is not None:
            self.put(f"{path}.reasoning", reasoning, style)
        if reasoning == "agent":
            # Many models make calls without a text beside them, and DeepFabric keeps such rows.
            self.put("quality.filters", {"reasoning": False}, style)
        for key, default in ((f"{path}.min_turns", 2), (f"{path}.max_turns", 4)):
            value = self.find(key)
            if mode == "multi_turn":
                self.put(key, default if value is None else value, key)
            elif value is not None:
                self.note(key, "left out; it is for the agent_mode 'multi_turn'")

    def map_tools(self) -> None:
        """Map the toolsets, and the files that they work on."""
        path = "generation.tools"
        if isinstance(seed := self.find(f"{path}.scenario_seed"), dict):
            key = self.moved.get(f"{path}.scenario_seed", f"{path}.scenario_seed")
            self.put("tools.files", seed.get("files") or {}, f"{key}.files")
            self.note(key, "its files are tools.files here; the writer of scenarios sees them")
            for name in [name for name in seed if name != "files"]:
                self.note(f"{key}.{name}", "left out; only files can be given", is_change=True)
        if self.find(path) is not None and (use := self._toolsets(path)):
            is_listed = bool(self.find(f"{path}.components"))
            self.put("tools.use", use, f"{path}.components" if is_listed else path)

    def _toolsets(self, path: str) -> list[Any]:
        """Return the toolsets of the section of tools."""
        endpoint, custom = self.find(f"{path}.spin_endpoint"), self.find(f"{path}.custom")
        service = {"endpoint": endpoint, "tool_execute_path": self.find(f"{path}.tool_execute_path")}
        components, local, use = self.find(f"{path}.components"), list[str](), list[Any]()
        lists = {f"{path}.available": self.find(f"{path}.available")}
        for name, tools in components.items() if isinstance(components, dict) else ():
            # A component is a list of tools, or a flag for all of them.
            if tools is not False:
                lists[f"{path}.components.{name}"] = tools
        for key, tools in lists.items():
            name, is_all = key.rpartition(".")[2], tools is True and key != f"{path}.available"
            if not isinstance(tools, list | None) and not is_all:
                self.fail(key, f"it is {tools!r:.80}; give a list of the names of tools")
            elif name in ("builtin", "vfs", "available"):
                names = list(NAMES) if is_all else tools or []
                local += self._known(names, key, has_service=endpoint is not None)
            elif endpoint is None:
                self.fail(key, "its tools run on a service; give its address with 'spin_endpoint'")
            else:
                names = None if is_all else tools or None
                more = {
                    "component": name,
                    "names": names,
                    "tools_endpoint": self.find(f"{path}.tools_endpoint"),
                }
                use.append({"name": "spin", "settings": _without_none(service | more)})
                self.note(key, f"it is the toolset 'spin' with the component {name!r} here")
        if local or not (use or custom or self.problems):
            names = list(dict.fromkeys(local))
            use.insert(0, {"name": "vfs", "settings": {"names": names}} if names else "vfs")
            text = "the built-in tools are the toolset 'vfs' here, which works in the sandbox of each sample"
            self.note(path, f"{text}{', without a server' if endpoint else ''}")
        return [*use, *self._custom(custom, service, f"{path}.custom")] if custom else use

    def _known(self, names: list[Json], key: str, *, has_service: bool) -> list[str]:
        """Return the built-in tools in a list. Other names are left out, as DeepFabric leaves out what its service
        does not offer; without a service, a name that is similar to a built-in tool is a mistake."""
        known = [name for name in names if name in NAMES]
        others: list[str] = []
        for name in [str(name) for name in names if name not in NAMES]:
            if not has_service and (hint := did_you_mean(name, NAMES, cutoff=NEAR)):
                self.fail(key, f"there is no built-in tool {name!r}{hint} they are {', '.join(NAMES)}")
            else:
                others.append(name)
        if others and len(others) == len(names):
            self.fail(key, f"none of these tools is built in; the built-in ones are {', '.join(NAMES)}")
        elif others:
            text = f"left out: {', '.join(others)}; tools of a service are named below its component"
            self.note(key, text, is_change=True)
        return known

    def _custom(self, tools: Json, service: dict[str, Json], key: str) -> list[Any]:
        """Return the toolset of tools that the file defines. Without a service their results are simulated."""
        if service["endpoint"] is None:
            self.put("tools.definitions", tools, key)
            text = "they are tools.definitions here, and their results are simulated"
            self.note(key, text, is_change=True)
            return []
        try:
            specs = parse_definitions({"tools": tools}, "the custom tools").tools
        except ConfigError as error:
            self.fail(key, str(error))
            return []
        self.note(key, "they are the toolset 'spin' without a component here")
        own = {"component": None, "tools": msgspec.to_builtins(specs)}
        return [{"name": "spin", "settings": _without_none(service) | own}]

    def map_output(self) -> None:
        """Map the place of the rows and their formats."""
        if (path := self.find("output.save_as")) is not None:
            folder = PurePath(str(path)).with_suffix("")
            self.put("output.path", str(folder), "output.save_as")
            self.put("name", re.sub(r"[^\w.-]", "-", folder.name), "output.save_as")
            text = f"the dataset is the folder {str(folder)!r} here, and its name {folder.name!r}"
            self.note("output.save_as", text)
        form, formatters = self.find("output.format"), self.find("output.formatters")
        formats = ["custom" if form == "custom" else "deepfabric"]
        for item in formatters if isinstance(formatters, list) else ():
            template = str(item.get("template") if isinstance(item, dict) else item).rpartition("/")[2]
            if (known := _KEYS["formatters"].get(template)) is not None:
                formats.append(known)
                self.note("output.formatters", f"{template!r} is the format {known!r} here")
            else:
                text = f"{template!r} is left out; see output.formats for the formats here"
                self.note("output.formatters", text, is_change=True)
        self.put("output.formats", list(dict.fromkeys(formats)), "output.format" if form else "output")


def _without_none(table: dict[str, Json]) -> dict[str, Json]:
    return {key: value for key, value in table.items() if value is not None}
