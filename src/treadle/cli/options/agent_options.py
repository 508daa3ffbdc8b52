"""The options that describe an agent: its model, tools, sampling settings, policy and knowledge.

Sampling settings and policy are rendered from the fields of `Settings` and `Policy`: a new field there is a new
option here. Its help text is one line in `SETTINGS` or `POLICY`.
"""

import inspect
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Self, TypeAlias
from urllib.parse import urlsplit

import typer
from msgspec.structs import replace

from treadle.cli.options.common import ApiKey, BaseUrl, Renderer, Tools, complete_model
from treadle.cli.options.option_groups import FieldOptions, OptionGroup, OptionHelp, make_parameter
from treadle.core.errors import ConfigError
from treadle.core.masking import hide_in_url
from treadle.core.policy import Approval, Policy, ToolLimits
from treadle.core.types import Effect, Settings

Model: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--model",
        "-m",
        envvar="TREADLE_MODEL",
        metavar="NAME",
        autocompletion=complete_model,
        help="A model, such as openai:gpt-5-mini. With 'auto', a router chooses among the tiers of treadle.toml. "
        "Two work offline: 'oracle' solves the tasks of a task set, and 'mock:echo' makes the calls that the text "
        "names.",
    ),
]
Tier: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--tier",
        metavar="NAME",
        help="A tier of treadle.toml: frontier, mid or small. It is the same as --model tier:NAME.",
    ),
]


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
            if not tool or name not in names or not number.isdigit():
                raise ConfigError(
                    f"--tool-limit {text!r}: write TOOL:calls=3, with calls, concurrent or chars, such as "
                    "'web_*:calls=3,chars=2000'"
                )
            limits[names[name]] = int(number)
        found[tool] = ToolLimits(**limits)
    return found


SETTINGS = {
    "temperature": OptionHelp("The sampling temperature.", least=0),
    "top_p": OptionHelp(
        "Sample only from the most likely tokens that together have this probability.", least=0, most=1
    ),
    "max_output_tokens": OptionHelp("The most tokens of one answer of the model.", least=1),
    "seed": OptionHelp("The sampling seed."),
    "stop": OptionHelp("A text that ends the answer. May be given several times."),
    "logprobs": OptionHelp("Ask for the logprobs of the sampled tokens."),
    "return_token_ids": OptionHelp("Ask for the token ids, which vLLM and SGLang can return."),
    "extra": OptionHelp("An object with further fields of the request, sent unchanged."),
}
"""The help of the sampling options, by the field of `Settings`."""

POLICY = {
    "max_steps": OptionHelp(
        "The most inferences with tools in a turn; one more without tools gives the answer.", least=0
    ),
    "max_tokens": OptionHelp("The most input and output tokens in a turn.", least=0),
    "max_tool_calls": OptionHelp(
        "The most tool calls in a turn; further calls are not run, and the model is told.", least=0
    ),
    "max_cost_usd": OptionHelp("The most that a turn may cost.", least=0),
    "deadline_seconds": OptionHelp("The most time for a turn, without the time of pauses.", least=0),
    "parallel_tool_calls": OptionHelp(
        "How many tool calls of one step run at a time.", ("--parallel",), least=1
    ),
    "max_result_chars": OptionHelp(
        "The longest tool result that the model gets; a longer one is cut in the middle.", least=1
    ),
    "tool_limits": OptionHelp(
        "Limits of a tool, or of all tools that match a pattern such as 'web_*': calls=N, concurrent=N, chars=N, "
        "separated by commas. May be given several times.",
        ("--tool-limit",),
        "TOOL:calls=N",
        read=read_tool_limits,
    ),
    "approve": OptionHelp(
        "'ask', 'never' or 'always' for calls with the effect once, or WHAT=ask for a tool, a pattern or an effect "
        "(pure, idempotent, once). You are asked at the terminal; without one the run waits for `treadle approve`.",
        ("--approve",),
        "RULE",
        read=read_approve,
    ),
    "max_output_attempts": OptionHelp("How many answers that break the schema end the turn.", least=1),
    "in_doubt": OptionHelp(
        "For a call with the effect once whose outcome was lost: tell the model, or ask the user."
    ),
    "last_step_message": OptionHelp(
        "The message that asks the model for its last answer when a limit is reached.", (), "TEXT"
    ),
    "context_tokens": OptionHelp(
        "The model's context window, if it is not known or should be smaller.", least=1
    ),
    "compact_at": OptionHelp(
        "The share of the context (0 to 1) at which old messages are compacted.", (), "SHARE"
    ),
    "compact_to": OptionHelp("The share of the context that is left after compacting.", (), "SHARE"),
    "keep_turns": OptionHelp("How many of the newest turns are kept as they are when compacting.", least=0),
    "summary_model": OptionHelp("The model that summarises old turns; by default the agent's.", (), "NAME"),
    "autonomy": OptionHelp("How often the agent may ask you in a turn: cautious 5, balanced 3, decisive 1."),
    "text_markers": OptionHelp("Understand [ASK_USER] and [FINAL] in answers, for models without tools."),
}
"""The help of the limits, by the field of `Policy`."""

_SETTINGS = FieldOptions(Settings, SETTINGS, "Sampling")
_POLICY = FieldOptions(Policy, POLICY, "Limits")


class AgentFlags(OptionGroup, frozen=True, kw_only=True, omit_defaults=True):
    """A model, its sampling settings and its tools. `None` means that an option was not given."""

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
        """See `OptionGroup.parameters`."""
        own = {"model": Model, "tier": Tier, "base_url": BaseUrl, "api_key": ApiKey}
        own |= {"renderer": Renderer, "tools": Tools}
        return [*[make_parameter(name, kind, None) for name, kind in own.items()], *_SETTINGS.parameters()]

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """See `OptionGroup.from_values`."""
        url = values["base_url"]
        if url is not None and not (url.startswith(("http://", "https://")) and urlsplit(url).netloc):
            shown = hide_in_url(url)
            raise ConfigError(f"--base-url {shown!r} is not a URL; give one such as http://localhost:8000/v1")
        model, tier = values["model"], values["tier"]
        if tier is not None and model not in (None, os.environ.get("TREADLE_MODEL")):
            raise ConfigError("give --model or --tier, not both")
        if tier is not None:
            from treadle.models.wrappers.tiered import check_tier

            check_tier(tier)
        return cls(
            model=model if tier is None else f"tier:{tier}",
            base_url=values["base_url"],
            api_key=values["api_key"],
            renderer=values["renderer"],
            tools=tuple(values["tools"] or ()),
            settings=Settings(**_SETTINGS.read(values)),
        )


class PolicyOptions(OptionGroup, frozen=True, kw_only=True):
    """The options for limits."""

    given: Mapping[str, Any] = {}
    """The fields of `Policy` that were given, with their values."""

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """See `OptionGroup.parameters`."""
        return _POLICY.parameters()

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """See `OptionGroup.from_values`."""
        return cls(given=_POLICY.read(values))

    def over(self, policy: Policy) -> Policy:
        """Return `policy` with the given limits. Raises: `ConfigError` for a limit out of range."""
        return replace(policy, **self.given) if self.given else policy


_PANEL = "Knowledge"
_NO_PERSONA = Path("none")
_Persona: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--persona",
        metavar="FILE",
        rich_help_panel=_PANEL,
        help="The YAML file of a persona: who the agent is, and its tools, skills, documents and memory. 'none': "
        "no persona, although treadle.toml names one.",
    ),
]
_Memory: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--memory/--no-memory",
        rich_help_panel=_PANEL,
        help="Whether the agent remembers from one session to the next. Default: as the persona says.",
    ),
]
_User: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--user", metavar="NAME", rich_help_panel=_PANEL, help="The user whom the memories are about."
    ),
]
_Skills: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--skills",
        metavar="FOLDER",
        rich_help_panel=_PANEL,
        help="A folder of skills, or 'builtin' for those of Treadle. May be given several times.",
    ),
]
_Documents: TypeAlias = Annotated[
    list[Path] | None,
    typer.Option(
        "--document",
        metavar="FILE",
        rich_help_panel=_PANEL,
        help="A document that the agent knows. May be given several times.",
    ),
]
_Judge: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--judge",
        metavar="NAME",
        rich_help_panel=_PANEL,
        help="What judges your messages before their turns: 'patterns', 'model:NAME' or 'none'. Default: as the "
        "persona or treadle.toml says.",
    ),
]


class KnowledgeOptions(OptionGroup, frozen=True, kw_only=True):
    """The options for the knowledge of a new agent. `None` means that an option was not given."""

    persona: _Persona = None
    memory: _Memory = None
    user: _User = None
    skills: _Skills = None
    documents: _Documents = None
    judge: _Judge = None

    def __post_init__(self) -> None:
        if self.user is not None and not self.user.strip():
            raise ConfigError("--user is empty; give the name of a user")

    def over_file(self) -> "KnowledgeOptions":
        """Return these options. Those that were not given come from the section `chat` of treadle.toml. Raises:
        `ConfigError`.

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
        """True if one of the options was given."""
        return any(getattr(self, name) not in (None, []) for name in self.__struct_fields__)
