"""`treadle models tiers`: the tiers of treadle.toml and of the environment."""

from collections.abc import Iterator
from contextlib import closing

from msgspec import Struct

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.terminal.columns import make_table, print_table
from treadle.cli.terminal.output import clean, print_json, print_note, stdout
from treadle.core.errors import ConfigError, JournalError
from treadle.core.types import Usage
from treadle.journal.registry import DEFAULT_PATH, open_journal
from treadle.models.config.recipe import Config, load_config
from treadle.models.protocol import estimate_cost_usd
from treadle.models.wrappers.tiered import QUALITY, find_nearest, window_of
from treadle.routing import LATENCIES

EXAMPLES = (
    "treadle models tiers",
    "treadle models tiers --json",
)


class ListedTier(Struct, frozen=True, omit_defaults=True):
    """One tier. `None` means that something is not known."""

    tier: str
    models: tuple[str, ...] = ()
    """The model, and its fallbacks."""
    context_tokens: int | None = None
    input_usd_per_million: float | None = None
    output_usd_per_million: float | None = None
    sees_images: bool | None = None
    tool_strength: str | None = None
    first_token_seconds: float | None = None
    """The measured time until an answer begins."""
    total_seconds: float | None = None
    """The measured time until an answer is complete."""
    samples: int = 0
    """How many answers were measured."""
    missing: str | None = None
    """Why the tier cannot be used."""


def tiers(journal: o.Journal = None, is_json: o.IsJson = False) -> int:
    """List the tiers with their models, what is known about these, and what is missing.

    Latencies are measured: they come from the newest runs of the journal.
    """
    config = load_config()
    if not config.file.tiers:
        prefix = config.file.tiers_prefix
        raise ConfigError(f"there are no tiers; add [tiers] to treadle.toml, or set {prefix}_SMALL_MODELS")
    for notice in config.notices:
        print_note(notice)
    address = journal or DEFAULT_PATH
    try:
        with closing(open_journal(address, must_exist=True)) as opened:
            LATENCIES.warm(opened)
    except JournalError:
        pass  # there are no runs yet
    found = list(_list(config))
    if is_json:
        print_json(*found)
        return ExitCode.DONE
    _print(found)
    router = config.file.router
    stdout().print(f"\nthe router of the model 'auto' is {router.name!r}", style="dim", soft_wrap=True)
    return ExitCode.DONE


def _list(config: Config) -> Iterator[ListedTier]:
    for name in QUALITY:
        table = config.file.tiers.get(name)  # type: ignore[call-overload]
        if table is None:
            try:
                instead, _ = find_nearest(
                    name, config.file.tiers, allows_weaker=config.file.router.allows_weaker
                )
                missing = f"not configured; {instead} takes its place"
            except ConfigError:
                missing = "not configured, and there is no better tier"
            yield ListedTier(name, missing=missing)
            continue
        models = (table.model, *table.fallback)
        try:
            tier = config.tier(name)
        except ConfigError as error:
            yield ListedTier(name, models, missing=str(error))
            continue
        measured = LATENCIES.get(tier.model.name)
        prices = [
            None if (cost := estimate_cost_usd(tier.model, usage)) is None else round(1000 * cost, 6)
            for usage in (Usage(1000, 0), Usage(0, 1000))
        ]
        yield ListedTier(
            name,
            models,
            window_of(tier),
            prices[0],
            prices[1],
            tier.sees_images,
            tier.tool_strength,
            measured.first_token_seconds,
            measured.total_seconds,
            measured.samples,
        )


def _print(found: list[ListedTier]) -> None:
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
