"""`treadle models`: the models of treadle.toml and of providers."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec.structs import replace

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.execute import execute
from treadle.cli.terminal.output import (
    clean,
    print_finding,
    print_json,
    print_line,
    print_note,
)
from treadle.cli.terminal.printed_tables import make_table, print_table
from treadle.core.errors import ConfigError, JournalError
from treadle.core.registry import name_known
from treadle.core.spec import PartSpec
from treadle.models.config import known_models
from treadle.models.config.known_models import ListedModel
from treadle.models.config.presets import find_preset, provider_names
from treadle.models.config.recipe import load_config
from treadle.models.config.stored_keys import delete_key, store_key, where_is_key
from treadle.models.protocol import Model

if TYPE_CHECKING:
    from treadle.models.config.probe import Probed, Prober
    from treadle.routing.known_tiers import ListedTier


def list_models(is_json: bool = False) -> None:
    """List the models of treadle.toml, and the providers for names such as provider:name.

    Examples:
        treadle models list
        treadle models list --json
    """
    config = load_config()
    models, known = list(known_models.list_models(config)), list(known_models.list_providers())
    if is_json:
        print_json(*models)
        print_json(*[{"provider": item.name, **msgspec.to_builtins(item)} for item in known])
        return
    if models:
        print_line(f"models of {config.path}", "bold")
        _print_groups(models)
        print_line("")
    else:
        text = "there is no treadle.toml in this folder or above it; `treadle init` writes one\n"
        print_line(text, "dim")
    print_line("providers, for names such as openai:gpt-5-mini", "bold")
    _print_groups(known)


def _print_groups(items: list[ListedModel]) -> None:
    width = max(len(item.name) for item in items)
    model_width = min(44, max(len(item.model) for item in items))
    for item in items:
        parts = [part for part in (item.where, *item.notes) if part]
        if item.key is not None:
            parts.append(f"{item.key} is {'set' if item.has_key else 'not set'}")
        mark = "*" if item.is_default else " "
        text = f"{mark} {item.name:<{width}}  {item.model:<{model_width}}  {' · '.join(parts)}"
        print_line(text.rstrip(), "" if item.has_key else "dim")


_GRADES = {
    "token_exact": "token ids and logprobs of the engine: runs are good for RL and for fine-tuning",
    "token_ids": "token ids of the engine without logprobs: runs are good for RL that computes logprobs itself",
    "text": "texts alone: runs are good for fine-tuning, and not for RL",
}
_TIMEOUT_SECONDS = 180.0
"""How long a server may send nothing, unless the model's table says it."""
_MARKS = {True: "yes|green", False: "no|yellow", None: "unknown|dim"}
_LOGPROBS = {
    True: "the logprobs are those of the policy that samples, with these settings",
    False: "the logprobs are not those of the policy that samples: ratios of RL that use them would be wrong",
    None: "whether the logprobs are those of the policy that samples is not known",
}


def check(
    name: str,
    base_url: str | None = None,
    api_key: str | None = None,
    renderer: str | None = None,
    is_json: bool = False,
) -> int:
    """Ask a live endpoint a dozen short questions to find out what it supports.

    They try tools, parallel calls, streaming, JSON Schema, logprobs and token ids, and find out which engine
    answers. The command prints what works, what to write into treadle.toml, and the grade of the data that runs
    will have: token_exact, token_ids or text. The exit code is 1 if the endpoint does not answer.

    Examples:
        treadle models check openai:gpt-5-mini
        treadle models check my-model --base-url http://localhost:8000/v1
    """
    from treadle.models.config.probe import Prober

    config = load_config()
    table = config.file.models.get(name)
    is_set = table is not None and "timeout_seconds" in table.model_fields_set
    own = {} if is_set else {"timeout_seconds": _TIMEOUT_SECONDS}

    def make(**settings: Any) -> Model:
        given = {"base_url": base_url, "api_key": api_key, "renderer": renderer, **own, **settings}
        return config.bare(name, **given)

    probed = execute(_probe(Prober(make), is_json=is_json))
    if not probed.is_usable:
        return ExitCode.FAILED
    if is_json:
        print_json(
            {
                "grade": probed.grade,
                "has_policy_logprobs": probed.has_policy_logprobs,
                "output_mode": probed.output_mode,
            }
        )
        return ExitCode.DONE
    print_line(f"\ngrade   {probed.grade}", "bold")
    print_line(f"        {_GRADES[probed.grade]}", "dim")
    if probed.grade == "token_exact":
        print_line(f"        {_LOGPROBS[probed.has_policy_logprobs]}", "dim")
    print_line(f'answers that must fit a schema: output_mode = "{probed.output_mode}"')
    return ExitCode.DONE


async def _probe(prober: "Prober", *, is_json: bool) -> "Probed":
    async for finding in prober.findings():
        if is_json:
            print_json(finding)
        else:
            print_finding(_MARKS[finding.is_there], finding.name, finding.seen, finding.advice)
    return prober.result()


def tiers(journal: str | None = None, is_json: bool = False) -> None:
    """List the tiers with their models, what is known about these, and what is missing.

    Latencies are measured: they come from the newest runs of the journal.

    Examples:
        treadle models tiers
        treadle models tiers --json
    """
    from treadle.journal.registry import DEFAULT_PATH, open_journal
    from treadle.routing import LATENCIES
    from treadle.routing.known_tiers import list_tiers

    config = load_config()
    if not config.file.tiers:
        prefix = config.file.tiers_prefix
        raise ConfigError(f"there are no tiers; add [tiers] to treadle.toml, or set {prefix}_SMALL_MODELS")
    for notice in config.notices:
        print_note(notice)
    address = journal or DEFAULT_PATH
    try:
        with open_journal(address, must_exist=True) as opened:
            LATENCIES.warm(opened)
    except JournalError:
        pass  # there are no runs yet
    found = list(list_tiers(config))
    if is_json:
        print_json(*found)
        return
    _print_tiers(found)
    router = config.file.router
    print_line(f"\nthe router of the model 'auto' is {router.name!r}", "dim")


def _print_tiers(found: list["ListedTier"]) -> None:
    columns = ("tier", "models", "window", "$ per 1M in, out", "images", "tools", "latency")
    table = make_table(*columns, wrapped=columns)
    for item in found:
        if item.missing is not None:
            table.add_row(item.tier, clean("\n".join([*item.models, item.missing])), style="dim")
            continue
        price = [
            "?" if value is None else f"{value:g}"
            for value in (item.input_usd_per_million, item.output_usd_per_million)
        ]
        table.add_row(
            item.tier,
            clean("\n".join(item.models)),
            "?" if item.context_tokens is None else f"{item.context_tokens:,}",
            ", ".join(price),
            {True: "yes", False: "no", None: "?"}[item.sees_images],
            item.tool_strength or "?",
            "not measured" if item.total_seconds is None else f"{item.total_seconds:.2f} s of {item.samples}",
        )
    print_table(table)


def route(
    text: str,
    router: str | None = None,
    images: int = 0,
    tools: int = 0,
    tokens: int = 0,
    is_first_turn: bool = True,
    is_json: bool = False,
) -> None:
    """Say which tier a router would choose for a message, and why.

    No model is asked. The message is taken as one of a session.

    Examples:
        treadle models route 'Prove that there are infinitely many primes.'
        treadle models route 'What is in this picture?' --images 1 --router scored
    """
    from treadle.models.wrappers.tiered import TieredModel
    from treadle.routing import choose, facts_of, make_router

    model = load_config().model("auto" if router is None else f"auto:{router}")
    assert isinstance(model, TieredModel)
    facts = facts_of(model, text)
    facts = replace(
        facts,
        images=images,
        tools=tools,
        prompt_tokens=facts.prompt_tokens + tokens,
        is_first_turn=is_first_turn,
        is_session=True,
        is_boilerplate=facts.is_boilerplate and not images,
    )
    chosen = choose(make_router(model), facts)
    if is_json:
        print_json(chosen)
        return
    print_line(f"{chosen.tier}  {chosen.model}", "bold")
    for reason in chosen.reasons:
        print_line(f"  because {reason}")
    for tier in model.tiers:
        if tier in chosen.rejected:
            print_line(f"  {tier:<8}  not possible: {chosen.rejected[tier]}", "dim")
        else:
            score = chosen.scores.get(tier)
            text = "no score" if score is None else f"score {score:.3f}"
            print_line(f"  {tier:<8}  {text}", "dim")


def trust(file: Path | None = None) -> None:
    """Trust the treadle.toml of this folder with its present content. If the content changes, you are asked again.

    Only a file that was found, and that sends conversations or keys to others than their provider, needs trust.

    Examples:
        treadle models trust
        treadle models trust ../treadle.toml
    """
    from treadle.journal.identity import Trust, record_trust
    from treadle.models.config.model_parts import demand_of, needs_trust
    from treadle.models.config.toml_file import KIND, digest_of, search_config

    path = file or search_config()
    if path is None:
        raise ConfigError("there is no treadle.toml in this folder, or above it in its working tree")
    for name, table in load_config(path).file.models.items():
        if needs_trust(table):
            print_note(f"it may {demand_of(PartSpec(name=name), table)}")
    record_trust(KIND, digest_of(path), Trust.TRUSTED, str(path.resolve()))
    print_note(f"{path} is trusted")


def set_key(
    provider: str,
    in_file: bool = False,
    is_deleted: bool = False,
) -> None:
    """Store the API key of a provider, in the system's keyring or in a file that only you can read.

    The key is typed at a prompt, or piped in. A key in the environment takes precedence over it.

    Examples:
        treadle models set-key openai
        pass show openai | treadle models set-key openai --file
    """
    variable = _find_variable(provider)
    if is_deleted:
        print_note(f"deleted {variable}" if delete_key(variable) else f"no key is stored for {variable}")
        return
    key = _read_key(variable)
    if not key or not key.isprintable() or " " in key:
        raise ConfigError("the key is empty" if not key else "the key has blanks or control characters")
    print_note(f"stored {variable} in {store_key(variable, key, in_file=in_file)}")
    if where_is_key(variable) == "the environment":
        print_note(f"{variable} is also set in the environment, which takes precedence")


def _find_variable(provider: str) -> str:
    if provider.isupper() and provider.replace("_", "").isalnum():
        return provider
    preset = find_preset(provider)
    if preset is None:
        known = provider_names()
        hint = name_known(provider, known, "the providers are")
        raise ConfigError(f"there is no provider {provider!r}{hint}")
    if preset.key_variable is None:
        raise ConfigError(f"the provider {provider!r} needs no key")
    return preset.key_variable


def _read_key(variable: str) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().strip()
    from getpass import getpass

    return getpass(f"{variable} (not shown): ").strip()
