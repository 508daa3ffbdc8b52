"""The tiers that environment variables define.

With a prefix of the user's choice and a tier such as SMALL, a tier is a list,
`<PREFIX>_SMALL_MODELS=provider/model,provider/model`, whose models have the keys `<PREFIX>_<PROVIDER>_API_KEY`, or
single settings, `<PREFIX>_SMALL_PROVIDER`, `_MODEL` and `_API_KEY`. A tier of the environment replaces one of the
file.
"""

import json
import re
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import name_known
from treadle.core.types import Json
from treadle.models.config.bare import providers
from treadle.models.config.presets import find_preset
from treadle.models.config.tables import TierTable
from treadle.models.wrappers.tiered import QUALITY

_SERVER = ("PROVIDER", "MODEL", "API_KEY")


def read_tiers(
    prefix: str, environment: Mapping[str, str]
) -> tuple[dict[str, TierTable], dict[str, dict[str, Json]], tuple[str, ...]]:
    """Return the tiers of the environment, the tables of their models by name, and notices about what was left out.

    Raises: `ConfigError` that names the variable, for an entry that is malformed or incomplete.
    """
    reader = _Environment(prefix.rstrip("_"), environment)
    tiers = {name: table for name in QUALITY if (table := reader.read_tier(name)) is not None}
    if not tiers and (table := reader.read_default()) is not None:
        tiers["frontier"] = table
    return tiers, reader.models, tuple(reader.notices)


class _Environment(Struct, eq=False):
    _prefix: str
    _all: Mapping[str, str]
    models: dict[str, dict[str, Json]] = {}
    notices: list[str] = []

    def read_default(self) -> TierTable | None:
        """Return the tier of one model for everything; every tier that is missing falls to a better one."""
        if self._all.get(f"{self._prefix}_PROVIDER") is None:
            return None
        names = self._single(self._prefix, "default")
        return self._table(f"{self._prefix}_", names) if names else None

    def read_tier(self, tier: str) -> TierTable | None:
        """Return a tier; `None` if its variables are not set."""
        stem = f"{self._prefix}_{tier.upper()}"
        names = self._list(tier, f"{stem}_MODELS") or self._single(stem, tier)
        return self._table(f"{stem}_", names) if names else None

    def _list(self, tier: str, variable: str) -> list[str]:
        """Return the names of the models in a list; nothing if the variable is not set."""
        text = self._all.get(variable)
        if text is None:
            return []
        if not text.strip():
            raise ConfigError(f"{variable} is empty; give models as provider/model, or unset it")
        entries = [entry.strip() for entry in text.split(",")]
        if "" in entries:
            raise ConfigError(f"{variable} is {text!r}, which has an empty entry; remove the extra comma")
        names = []
        for number, entry in enumerate(entries, 1):
            provider, slash, model = entry.partition("/")
            if not slash:
                raise ConfigError(f"{variable}: {entry!r} has no slash; write it as provider/model")
            self._check_provider(variable, provider)
            if not model:
                raise ConfigError(f"{variable}: {entry!r} names no model after the slash")
            key = f"{self._prefix}_{as_variable(provider)}_API_KEY"
            if self._needs_key(provider) and self._key(key) is None:
                self.notices.append(f"{variable}: {entry!r} is left out, because {key} is not set")
                continue
            names.append(self._add(f"{variable.lower()}-{number}", provider, model, key))
        if not names:
            raise ConfigError(f"{variable}: no model is left; {'; '.join(self.notices)}")
        if any(f"{variable.removesuffix('_MODELS')}_{item}" in self._all for item in _SERVER):
            self.notices.append(f"{variable} is used, and the tier's single settings are not")
        return names

    def _single(self, stem: str, tier: str) -> list[str]:
        """Return the name of the model of single settings; nothing if none of them is set."""
        given = {
            item: self._all[f"{stem}_{item}"].strip() for item in _SERVER if f"{stem}_{item}" in self._all
        }
        if not given:
            return []
        provider = given.get("PROVIDER", "")
        needed = _SERVER if not provider or self._needs_key(provider) else _SERVER[:2]
        missing = [f"{stem}_{item}" for item in needed if not given.get(item)]
        if missing:
            set_now = ", ".join(f"{stem}_{item}" for item in given)
            raise ConfigError(
                f"the tier {tier!r} is incomplete: {set_now} is set; set also {', '.join(missing)}"
            )
        self._check_provider(f"{stem}_PROVIDER", provider)
        return [
            self._add(f"{stem.lower()}-1", provider, given["MODEL"], f"{stem}_API_KEY", f"{stem}_BASE_URL")
        ]

    def _add(self, name: str, provider: str, model: str, key: str, url: str | None = None) -> str:
        """Add the table of a model, and return its name."""
        table: dict[str, Json] = {"model": f"{provider}:{model}"}
        if self._all.get(key):
            table["api_key_env"] = key
        for variable in (url, f"{self._prefix}_{as_variable(provider)}_BASE_URL"):
            if variable is not None and (address := self._all.get(variable)):
                table["base_url"] = address
                break
        self.models[name] = table
        return name

    def _table(self, stem: str, names: list[str]) -> TierTable:
        """Return the tier of the models `names`, with the settings whose variables begin with `stem`."""
        values: dict[str, Any] = {"model": names[0], "fallback": names[1:]}
        for suffix, (field, kind) in _SETTINGS.items():
            text = self._all.get(stem + suffix)
            if text is None:
                continue
            try:
                value: Any = text.strip()
                if suffix.endswith("_MS"):
                    value = float(value) / 1000
                elif field == "extra":
                    value = json.loads(value)
                    if not isinstance(value, dict):
                        raise ValueError(text)
                values[field] = getattr(TierTable.model_validate({"model": "m", field: value}), field)
            except ValueError:
                raise ConfigError(f"{stem}{suffix} is {text!r}; give {kind}") from None
        prices = [f"{stem}COST_{side}_PER_1K" for side in ("INPUT", "OUTPUT")]
        if any([self._all.get(name) for name in prices]):
            values["price"] = self._price(prices)
        return TierTable(**values)

    def _price(self, names: list[str]) -> dict[str, float]:
        """Return a price per million tokens from one in cents per thousand."""
        found = []
        for name in names:
            if not (text := self._all.get(name)):
                raise ConfigError(f"the price is incomplete; set also {name}, in US cents")
            try:
                found.append(10 * float(text))
            except ValueError:
                raise ConfigError(f"{name} is {text!r}; give a number") from None
        return {"input_usd_per_million": found[0], "output_usd_per_million": found[1]}

    def _key(self, variable: str) -> str | None:
        """Return a key; `None` if the variable is not set. Raises: `ConfigError` if it is blank."""
        key = self._all.get(variable)
        if key is not None and not key.strip():
            raise ConfigError(f"{variable} is set and blank; give a key, or unset it to leave its models out")
        return key

    def _check_provider(self, variable: str, provider: str) -> None:
        known = providers()
        if provider not in known:
            hint = name_known(provider, sorted(known), "the providers are")
            raise ConfigError(f"{variable}: unknown provider {provider!r}{hint}")

    def _needs_key(self, provider: str) -> bool:
        preset = find_preset(provider)
        return preset is not None and preset.needs_key


def as_variable(name: str) -> str:
    """Return a name as a part of the name of an environment variable."""
    return re.sub(r"[^A-Za-z0-9]", "_", name).upper()


_SETTINGS: dict[str, tuple[str, str]] = {
    "MAX_TOKENS": ("max_output_tokens", "a whole number in its range"),
    "TEMPERATURE": ("temperature", "a number in its range"),
    "EXTRA_BODY": ("extra", "a JSON object"),
    "FIRST_TOKEN_LATENCY_MS": ("first_token_seconds", "a number of milliseconds"),
    "CONTEXT_WINDOW": ("context_tokens", "a whole number in its range"),
    "TOOL_STRENGTH": ("tool_strength", "weak, medium or strong"),
    "SEES_IMAGES": ("sees_images", "yes or no"),
    "QUALITY": ("quality", "a number in its range"),
}
"""The settings of a tier by the end of their variables: the field of `TierTable`, and what to give."""
