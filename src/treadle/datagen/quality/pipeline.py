"""The filters of one dataset, which run from the cheapest to the costliest until one rejects the sample."""

from collections.abc import Sequence
from itertools import groupby
from math import prod

from msgspec.structs import replace

from treadle.core.errors import ConfigError, TreadleError
from treadle.core.tally import Charge, Tally
from treadle.core.types import Role, Usage
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.quality.protocol import Candidate, Filter, FilterSettings, FilterVerdict, Resources
from treadle.datagen.quality.registry import DUPLICATES, load_filter, read_settings
from treadle.export.rows import Row
from treadle.models.protocol import Model
from treadle.tools.protocol import ToolLike
from treadle.tools.user_code import blame

_MAX_ERROR = 300


class Pipeline:
    """The filters that a configuration asks for."""

    def __init__(
        self, config: GenerationConfig, *, judge: Model | None = None, tools: Sequence[ToolLike] | None = None
    ) -> None:
        """Make the filters. `tools` are the agent's tools; without them, the tools that the runs name are used.

        Raises: `ConfigError` that lists the faults of `quality.filters`, or that says why a filter cannot be made.
        """
        resources = Resources(config=config, tools=tools, judge=judge)
        settings = read_settings(config)
        kinds = {name: load_filter(name) for name in settings if name != DUPLICATES}
        names = [kind.name for kind in kinds.values()]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ConfigError(
                f"quality.filters: two filters have the name {twice!r}; give yours another name"
            )
        made = [kind(settings[name], resources) for name, kind in kinds.items()]
        self.filters: tuple[Filter[FilterSettings], ...] = tuple(sorted(made, key=lambda item: item.cost))
        """The filters in the order in which they run."""
        self.duplicates = settings.get(DUPLICATES)
        """The settings of the search for duplicates; `None` if it is switched off."""
        lower = config.quality.lower
        self._lower = {kind.name: lower[name] for name, kind in kinds.items() if name in lower}

    async def check(self, candidate: Candidate, *, is_whole: bool = True) -> tuple[FilterVerdict, ...]:
        """Return the verdicts about a sample, in the order of the filters. About the beginning of a conversation
        (`is_whole` is false), only those whose verdict holds for all of it are asked.

        All filters of one cost run, so that every reason is known; costlier ones run only if none rejected. A
        sample on which a filter fails with an unexpected error is rejected. One that a filter of `quality.lower`
        finds wanting is not: its verdict has a weight.

        Raises: the error of a server that a filter needs, because that is not the sample's fault.
        """
        verdicts: list[FilterVerdict] = []
        chosen = [item for item in self.filters if is_whole or item.reads_turns]
        for _, equals in groupby(chosen, key=lambda item: item.cost):
            verdicts += [await self._check(item, candidate) for item in equals]
            if not is_good(verdicts):
                break
        return tuple(verdicts)

    async def _check(self, chosen: Filter[FilterSettings], candidate: Candidate) -> FilterVerdict:
        """Return the verdict of one filter.

        Raises: `TreadleError`; `UserCodeError` if a filter of the user has a mistake.
        """
        try:
            verdict = await chosen.check(candidate)
        except TreadleError:
            raise
        except Exception as error:
            is_ours = type(chosen).__module__.startswith("treadle.")
            if not is_ours and (wrong := blame(error, f"the filter {chosen.name!r} failed")) is not None:
                raise wrong from error
            return chosen.reject(f"the filter failed with {type(error).__name__}: {error}"[:_MAX_ERROR])
        return verdict if verdict.is_passed else replace(verdict, weight=self._lower.get(chosen.name))


def is_good(verdicts: Sequence[FilterVerdict]) -> bool:
    """Return whether no filter rejected the sample. One whose weight was lowered is good."""
    return all(verdict.is_kept for verdict in verdicts)


def find_repairs(verdicts: Sequence[FilterVerdict]) -> list[str]:
    """Return the reasons that a new last answer could mend, if the sample could then be kept; else nothing."""
    wanting = [verdict for verdict in verdicts if not verdict.is_passed]
    can_mend = all(item.can_repair or item.is_kept for item in wanting)
    return [item.reason for item in wanting if item.can_repair] if can_mend else []


def mark_row(row: Row, verdicts: Sequence[FilterVerdict]) -> Row:
    """Return a row that says which filters it passed, with their notes, and whether its calls were verified.

    Filters that lower it give it the product of their weights. With the weight 0, no answer is trained on.

    The assistant messages that a filter names as `untrained` are not trained on.

    The tokens and the cost of filters that asked a model are added to those of the sample.
    """
    sample = row.lineage.sample
    if sample is None:
        return row
    passed = {verdict.filter: verdict.reason for verdict in verdicts if verdict.is_passed}
    lowered = {verdict.filter: verdict for verdict in verdicts if verdict.weight is not None}
    weight = prod([verdict.weight for verdict in lowered.values() if verdict.weight is not None])
    details = [verdict.details for verdict in verdicts if verdict.details]
    is_verified = any([known.get("is_verified") is True for known in details])
    counts = {
        name: sum([int(known.get(name) or 0) for known in details])
        for name in ("statements", "grounded", "controls", "agreed")
    }
    tally = Tally()
    tally.add(Charge(Usage(sample.input_tokens, sample.output_tokens), sample.cost_usd))
    for verdict in verdicts:
        if verdict.cost_usd != 0 or verdict.usage.total_tokens:
            tally.add(Charge(verdict.usage, verdict.cost_usd))
    marked = replace(
        sample,
        filters={**sample.filters, **passed},
        lowered={**sample.lowered, **{name: verdict.reason for name, verdict in lowered.items()}},
        is_verified=is_verified,
        **counts,
        input_tokens=tally.usage.input_tokens,
        output_tokens=tally.usage.output_tokens,
        cost_usd=tally.cost_usd,
    )
    found = [known.get("untrained") for known in details]
    untrained = {int(str(number)) for given in found if isinstance(given, list) for number in given}
    if weight == 0:
        untrained.update(range(sum([message.role is Role.ASSISTANT for message in row.messages])))
    return replace(
        row,
        lineage=replace(row.lineage, sample=marked),
        weight=row.weight * weight if lowered else row.weight,
        untrained=tuple(sorted({*row.untrained, *untrained})),
    )
