"""The options that describe an agent: its model, tools, sampling settings, policy and knowledge.

Sampling settings and policy are rendered from the fields of `Settings` and `Policy`: a new field there is a new
option here. Its help is one line in `options.txt`.
"""

import inspect
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Self
from urllib.parse import urlsplit

from msgspec.structs import replace

from treadle.cli.options.option_groups import FieldGroup, FieldOptions, OptionGroup, declare_all
from treadle.core.errors import ConfigError
from treadle.core.policy import Approval, Policy, ToolLimits
from treadle.core.texts.masking import hide_in_url
from treadle.core.types import Effect, Settings


def read_approve(rules: Sequence[str]) -> dict[str, Approval]:
    """Return the rules of `--approve` as `Policy.approve`; a word alone is for calls of effect `once`.

    Raises: `ConfigError` for a rule that cannot be read.
    """
    found: dict[str, Approval] = {}
    for rule in rules:
        key, _, word = rule.rpartition("=")
        try:
            found[key or Effect.ONCE.value] = Approval(word)
        except ValueError:
            raise ConfigError(
                f"--approve {rule!r}: {word!r} is not one of ask, never and always; write --approve ask, or "
                "--approve 'send_*=ask'"
            ) from None
    return found


def read_tool_limits(texts: Sequence[str]) -> dict[str, ToolLimits]:
    """Return the limits of `--tool-limit` as `Policy.tool_limits`. Raises: `ConfigError`."""
    names = {"calls": "max_calls", "concurrent": "max_concurrent", "chars": "max_result_chars"}
    found: dict[str, ToolLimits] = {}
    for text in texts:
        tool, _, rest = text.rpartition(":")
        limits: dict[str, int] = {}
        for part in rest.split(","):
            name, _, number = part.strip().partition("=")
            if not tool or name not in names or not number.isdecimal():
                raise ConfigError(
                    f"--tool-limit {text!r}: write TOOL:calls=3, with calls, concurrent or chars, such as "
                    "'web_*:calls=3,chars=2000'"
                )
            limits[names[name]] = int(number)
        found[tool] = ToolLimits(**limits)
    return found


_SETTINGS = FieldOptions(Settings, "Sampling")


def check_base_url(url: str | None) -> None:
    """Check the value of `--base-url`. Raises: `ConfigError` if it is not a URL."""
    with suppress(ValueError):
        if url is None or (url.startswith(("http://", "https://")) and urlsplit(url).netloc):
            return
    shown = hide_in_url(url or "")
    raise ConfigError(f"--base-url {shown!r} is not a URL; give one such as http://localhost:8000/v1")


_TEXTS = ("own_agent", "model", "tier", "base_url", "api_key", "renderer")
"""The options of `AgentFlags` that take a text."""


class AgentFlags(OptionGroup, frozen=True, kw_only=True, omit_defaults=True):
    """A model, its sampling settings and its tools, or `own_agent`, the place of an agent that has all of them.
    `None` means that an option was not given."""

    own_agent: str | None = None
    model: str | None = None
    base_url: str | None = None
    api_key: str | None = None
    renderer: str | None = None
    tools: tuple[str, ...] = ()
    settings: Settings = Settings()

    def __repr__(self) -> str:
        return f"AgentFlags(model={self.model!r}, tools={self.tools!r})"  # never the key

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        own: dict[str, Any] = dict.fromkeys(_TEXTS, str | None)
        own["tools"] = list[str] | None
        return [*declare_all(cls.__name__, own), *_SETTINGS.parameters()]

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        check_base_url(values["base_url"])
        model, tier = values["model"], values["tier"]
        if tier is not None and model not in (None, os.environ.get("TREADLE_MODEL")):
            raise ConfigError("give --model or --tier, not both")
        if tier is not None:
            from treadle.models.wrappers.tiered import check_tier

            check_tier(tier)
        return cls(
            own_agent=values["own_agent"],
            model=model if tier is None else f"tier:{tier}",
            base_url=values["base_url"],
            api_key=values["api_key"],
            renderer=values["renderer"],
            tools=tuple(values["tools"] or ()),
            settings=Settings(**_SETTINGS.read(values)),
        )


class PolicyOptions(FieldGroup, frozen=True, kw_only=True):
    """The options for limits."""

    FIELDS = FieldOptions(Policy, "Limits", {"tool_limits": read_tool_limits, "approve": read_approve})

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        if values["max_steps"] == 0:
            raise ConfigError(
                "--max-steps 0 allows no step: give 1 or more, or no --tools for an answer without calls"
            )
        return super().from_values(values)

    def over(self, policy: Policy) -> Policy:
        """Return `policy` with the given limits. Raises: `ConfigError` for a limit out of range."""
        return replace(policy, **self.given) if self.given else policy


_NO_PERSONA = Path("none")


class KnowledgeOptions(OptionGroup, frozen=True, kw_only=True):
    """The options for the knowledge of a new agent. `None` means that an option was not given."""

    persona: Path | None = None
    memory: bool | None = None
    user: str | None = None
    skills: list[Path] | None = None
    documents: list[Path] | None = None
    judge: str | None = None

    def __post_init__(self) -> None:
        if self.user is not None and not self.user.strip():
            raise ConfigError("--user is empty; give the name of a user")

    def over_file(self) -> "KnowledgeOptions":
        """Return these options. Those that were not given come from the section `chat` of treadle.toml.

        Raises: `ConfigError`.
        """
        from treadle.models.config.recipe import load_config

        config = load_config()
        chat = config.file.chat
        persona = self.persona
        if persona is None and chat.persona is not None:
            persona = config.resolve(chat.persona)
        return replace(
            self,
            persona=None if persona == _NO_PERSONA else persona,
            memory=chat.memory if self.memory is None else self.memory,
            user=self.user or os.environ.get("TREADLE_USER") or chat.user,
        )

    @property
    def is_given(self) -> bool:
        return any(getattr(self, name) not in (None, []) for name in self.__struct_fields__)
