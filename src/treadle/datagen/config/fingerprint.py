"""The fingerprint of a configuration: the values that have an influence on the rows.

A dataset is continued only if they have not changed.
"""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

from treadle.core.errors import ConfigError
from treadle.core.texts.documents import read_data
from treadle.core.texts.masking import MASK, hide_fields
from treadle.core.types import Json
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.roles import given_model, used_roles
from treadle.jobs.config_changes import Change, hide_text, hide_toolset
from treadle.journal.named_files import explain_unread
from treadle.models.config.model_parts import is_secret_url
from treadle.models.config.recipe import load_config as load_models
from treadle.sandbox.mount import Mount
from treadle.tools.resolve import split_file

_KEYS: dict[str, list[str]] = read_data(__package__, "fingerprint")
_MESSAGES = ("output.system_message", "output.include_system_message")
"""Keys of `output` that are in the rows."""


def fingerprint(config: GenerationConfig) -> dict[str, Json]:
    """Return the values that have an influence on the rows, by key with dots between sections, without secrets.

    Raises: `ConfigError` if a file cannot be read.
    """
    value = config.model_dump(mode="json")
    value["models"] = _models_of(config)
    _hash_files(config, value)
    found = dict(_flatten("", hide_secrets(value)))
    return {
        key: item
        for key, item in found.items()
        if key in _MESSAGES
        or not any(key == name or key.startswith(f"{name}.") for name in _KEYS["harmless"])
    }


def explain_changes(changes: list[Change], remedy: str) -> str:
    """Return the text of the error for a changed configuration; `remedy` says how to continue anyway."""
    listed = "\n".join(f"  {change}" for change in changes)
    return (
        f"the dataset was begun with another configuration, and new rows would differ from its rows:\n{listed}\n"
        f"Undo the changes, write to another folder (--out, or output.path), or {remedy}"
    )


def _models_of(config: GenerationConfig) -> dict[str, Json]:
    """Return what has an influence on the answers of each role's model, with names of treadle.toml resolved."""
    file = load_models()
    models: dict[str, Json] = {}
    for role in used_roles(config):
        table = file.table_of(given_model(config, role)).model_dump(mode="json", exclude_defaults=True)
        models[role] = {key: item for key, item in table.items() if key not in _KEYS["harmless_of_models"]}
    return models


def _flatten(prefix: str, value: Json) -> Iterator[tuple[str, Json]]:
    """Yield the keys below `prefix` with their values; empty values, which are defaults, are left out."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _flatten(f"{prefix}.{key}" if prefix else key, item)
    elif isinstance(value, str) and len(value) > 200:
        yield prefix, f"sha256:{sha256(value.encode()).hexdigest()[:16]} {value[:40]!r}"
    elif value not in (None, [], ""):
        yield prefix, value


def _hash_files(config: GenerationConfig, value: dict[str, Json]) -> None:
    """Replace the paths of files in the JSON of a configuration by hashes of the files' contents."""
    topics, tools, quality = config.topics, config.tools, config.quality
    sections: Any = value
    if topics.load is not None:
        sections["topics"]["load"] = _hash_of("topics.load", topics.load)
    if tools.folder is not None:
        sections["tools"]["files"] = _hash_of("tools.files", tools.folder)
    for number, part in enumerate(tools.parts()):
        if found := split_file(part.name):
            told = _hash_of(f"tools.use.{number}", Path(found[0]))
            use, name = sections["tools"]["use"], f"{told}:{found[1] or ''}"
            use[number] = name if isinstance(use[number], str) else use[number] | {"name": name}
    for section in ("filters", "lower"):
        given = sections["quality"][section]
        sections["quality"][section] = {_hash_filter(name): item for name, item in given.items()}
    sections["quality"]["evaluation_sets"] = [
        _hash_of(f"quality.evaluation_sets.{number}", path)
        for number, path in enumerate(quality.evaluation_sets)
    ]


def _hash_filter(name: str) -> str:
    """Return the name of a filter, in which a file is replaced by the hash of its content."""
    found = split_file(name)
    return name if found is None else f"{_hash_of('quality.filters', Path(found[0]))}:{found[1] or ''}"


def _hash_of(key: str, path: Path) -> str:
    """Return the name of a file or folder with the hash of its content."""
    digest = sha256()
    try:
        if path.is_dir():
            for name, content in Mount(path).items():
                digest.update(f"{name}\0{len(content)}\0".encode() + content)
        else:
            digest.update(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"{key}: {explain_unread('', path, error)}") from error
    return f"{path.name} sha256:{digest.hexdigest()[:16]}"


def hide_secrets(value: dict[str, Json]) -> dict[str, Json]:
    """Return the JSON of a configuration without the texts that may be secret.

    These are headers, addresses and further fields of models, and toolsets whose text or settings may hold a key. A
    value that only names an environment variable, as `${NAME}`, is kept.
    """
    models, tools = value.get("models"), value.get("tools")
    hidden = dict(value)
    if isinstance(models, dict):
        hidden["models"] = {role: _hide_model(table) for role, table in models.items()}
    if isinstance(tools, dict) and isinstance(tools.get("use"), list):
        hidden["tools"] = {**tools, "use": [hide_toolset(item) for item in tools["use"]]}
    return hidden


def _hide_model(table: Json) -> Json:
    if not isinstance(table, dict):
        return table
    found = dict(table)
    if isinstance(headers := table.get("headers"), dict):
        found["headers"] = {name: hide_text(text) for name, text in headers.items()}
    if isinstance(url := table.get("base_url"), str) and is_secret_url(url):
        found["base_url"] = MASK
    return found | {key: hide_fields(table[key]) for key in ("extra", "options") if table.get(key)}
