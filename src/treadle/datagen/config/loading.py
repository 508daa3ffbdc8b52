"""The reading of a configuration file. All mistakes in it are reported together, each with its line.

Paths in the file are relative to its folder, and `output.path` to the current one.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from msgspec.structs import replace
from pydantic import ValidationError

from treadle.core.errors import ConfigError, MistakesError
from treadle.core.texts.places import Document, KeyPath, Mapped, Problem, parse_document
from treadle.core.types import Json
from treadle.datagen.config.config_schema import dump
from treadle.datagen.config.config_schema import schema as make_schema
from treadle.datagen.config.conflicts import find_conflicts, find_obstacles, find_unknown_names
from treadle.datagen.config.deepfabric_config import dedent_sections, is_deepfabric, map_deepfabric
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.export.whole import write_whole
from treadle.jobs.sections import ConfigReader, LoadedConfig, read_config_file
from treadle.tools.resolve import place_in


class _Reader(ConfigReader[GenerationConfig]):
    @cached_property
    def schema(self) -> dict[str, Any]:
        return make_schema()

    def validate(
        self,
        value: dict[str, Any],
        find_conflicts: Callable[[GenerationConfig], list[Problem]] | None = None,
    ) -> tuple[GenerationConfig | None, list[Problem]]:
        config, found = super().validate(value, find_conflicts)
        return config, found if config is not None else [*found, *_find_more(value, found)]


def _translate(document: Document) -> Mapped:
    """Return a document in Treadle's keys, with its paths relative to the folder of the file."""
    mapped = Mapped(document.value, {}, (), ())
    if is_deepfabric(document.value):
        mapped = map_deepfabric(document)
    return replace(mapped, value=_resolve_paths(mapped.value, Path(document.path).parent.absolute()))


READER = _Reader(
    GenerationConfig,
    "treadle generate",
    find_conflicts,
    {
        ("models", "*"): "'provider:name', a name of treadle.toml, or a mapping with 'model' and settings",
        ("generation", "num_samples"): "a number from 1, 'auto', or a percentage such as '50%'",
        ("tools", "use", "*"): "the name of a toolset, or a mapping with 'name' and 'settings'",
        ("tools", "files"): "a folder, a mapping of path to content, or 'tasks:SET'",
        ("quality", "filters", "*"): "true, false, or a mapping with settings",
    },
    renamed={("generation", "engine"): "workers", ("output", "out"): "path"},
    translate=_translate,
)
"""The reader of configuration files."""


def load_config(
    path: str | Path, changes: Mapping[str, Json] | None = None, flags: Mapping[str, str] | None = None
) -> LoadedConfig[GenerationConfig]:
    """Return the configuration in a YAML or JSON file. A file of DeepFabric 4 is accepted too.

    `changes` override the file, by key such as `generation.num_samples`; paths in them are relative to the current
    folder. `flags` are the options that error messages name in place of such keys. Only the file itself is checked.
    `check_plan` checks the models, tools and output that it names. Raises: `ConfigError` that lists all mistakes,
    each with `file:line`, the key and the nearest known key.
    """
    document, notes = _read(Path(path).expanduser())
    loaded = READER.read(document, changes, flags)
    return replace(loaded, mapped=replace(loaded.mapped, notes=(*notes, *loaded.notes)))


def check_plan(
    config: GenerationConfig | LoadedConfig[GenerationConfig],
    leaves: int | None = None,
    *,
    imports: bool = True,
) -> None:
    """Check what a configuration names: models with their keys and prices, files, tools, the output, and limits
    that the estimate exceeds. No request is sent, and no server is started. `leaves` is the number of leaf topics,
    if it is known. Without `imports`, the files and modules of tools are not imported and cannot do anything.
    For a `LoadedConfig`, the message has the line of each mistake.

    Raises: `ConfigError` that lists all mistakes.
    """
    plan = config.config if isinstance(config, LoadedConfig) else config
    problems = find_obstacles(plan, leaves, imports=imports)
    if problems and isinstance(config, LoadedConfig):
        raise config.error(problems)
    if problems:
        raise MistakesError("\n".join(map(str, problems)))


def _read(file: Path) -> tuple[Document, tuple[str, ...]]:
    """Return the document in a file, and a note if the last sections of a DeepFabric file had to be dedented."""
    data = read_config_file(file)
    try:
        return parse_document(data, str(file)), ()
    except ConfigError as error:
        mark = getattr(error.__cause__, "problem_mark", None)
        text = None if mark is None else dedent_sections(data.decode(errors="replace"), mark.line + 1)
        if mark is None or text is None:
            raise
        try:
            document = parse_document(text.encode(), str(file))
        except ConfigError:
            raise error from None
        if not is_deepfabric(document.value):
            raise
        note = "the indentation from here on is not valid YAML; the sections were read as if they had none"
        return document, (f"{file}:{mark.line + 1}: {note}",)


def _resolve_paths(value: dict[str, Json], folder: Path) -> dict[str, Json]:
    """Return `value` with its paths relative to `folder`."""

    def resolve(text: Json) -> Json:
        return str(folder / Path(text).expanduser()) if isinstance(text, str) else text

    def section(name: str) -> dict[str, Json]:
        found = value.get(name)
        return dict(found) if isinstance(found, dict) else {}

    topics, quality, tools, models = map(section, ("topics", "quality", "tools", "models"))
    topics |= {"load": resolve(topics["load"])} if "load" in topics else {}
    if isinstance(sets := quality.get("evaluation_sets"), list):
        quality["evaluation_sets"] = [resolve(item) for item in sets]
    for key in ("filters", "lower"):
        if isinstance(by_filter := quality.get(key), dict):
            quality[key] = {str(place_in(name, folder)): given for name, given in by_filter.items()}
    if isinstance(files := tools.get("files"), str) and not files.startswith("tasks:"):
        tools["files"] = resolve(files)
    if isinstance(use := tools.get("use"), list):
        tools["use"] = [place_in(item, folder) for item in use]
    for role, table in models.items():
        if isinstance(table, dict) and "cache" in table:
            models[role] = table | {"cache": resolve(table["cache"])}
    changed = {"topics": topics, "quality": quality, "tools": tools, "models": models}
    return value | {name: part for name, part in changed.items() if isinstance(value.get(name), dict)}


def _find_more(value: dict[str, Json], faults: Sequence[Problem]) -> list[Problem]:
    """Return unknown names in the part of `value` that has no faults, so that all mistakes are told together."""
    for fault in faults:
        value = _without(value, fault.path)
    try:
        return find_unknown_names(GenerationConfig.model_validate(value))
    except ValidationError:
        return []


def _without(value: dict[str, Json], path: KeyPath) -> dict[str, Json]:
    """Return `value` without the key at `path`, or without the list that has it."""
    key = str(path[0]) if path else ""
    inner = value.get(key)
    if len(path) > 1 and isinstance(path[1], str) and isinstance(inner, dict):
        return value | {key: _without(inner, path[1:])}
    return {name: item for name, item in value.items() if name != key}


def write_config(folder: Path, config: GenerationConfig) -> None:
    """Write the configuration, without defaults. Texts that may be secret are not in it.

    Raises: `ConfigError` if no file can be made.
    """
    write_whole(dump(config).rstrip("\n").encode().split(b"\n"), DatasetFolder(folder).config)


def read_config(folder: Path) -> GenerationConfig | None:
    """Return the configuration in the folder of a dataset; `None` if there is none, or if it is a file of rows.

    Raises: `ConfigError` if it cannot be read.
    """
    place = DatasetFolder(folder).config
    return load_config(place).config if folder.is_dir() and place.exists() else None
