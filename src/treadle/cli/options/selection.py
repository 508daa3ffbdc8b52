"""The options that select runs of a journal."""

from collections.abc import Iterable

from treadle.cli.options.option_groups import OptionGroup
from treadle.core.errors import ConfigError
from treadle.core.registry import name_known
from treadle.core.types import StopReason
from treadle.journal.run_info import RunFilter
from treadle.runs.statuses import FAILED, FILTERS
from treadle.runs.task import split_reference


class Selection(OptionGroup, frozen=True, kw_only=True):
    """The options that select runs of a journal. `None` means that an option was not given."""

    status: str | None = None
    model: str | None = None
    task: str | None = None
    label: list[str] | None = None

    def __post_init__(self) -> None:
        known = [*FILTERS, FAILED, *[reason.value for reason in StopReason]]
        if self.status is not None and self.status not in known:
            hint = name_known(self.status, known, "the statuses are")
            raise ConfigError(f"there is no status {self.status!r}{hint}")
        read_labels(self.label or ())

    @property
    def is_all(self) -> bool:
        """True if no option was given."""
        return self == type(self)()

    @property
    def listed(self) -> str | None:
        """The status if it is one of `FILTERS`, else `None`."""
        return self.status if self.status in FILTERS else None

    @property
    def condition(self) -> RunFilter:
        """The journal's filter for the options, without the condition that `listed` returns."""
        status = self.status
        reason = StopReason.ERROR if status == FAILED else status if status in tuple(StopReason) else None
        task_set, task_id = split_reference(self.task or "")
        return RunFilter(
            stop_reason=reason,
            is_finished=None if reason is None else True,
            model=self.model,
            task_set=task_set or None,
            task_id=task_id or None,
            labels=read_labels(self.label or ()),
        )


def read_labels(texts: Iterable[str]) -> dict[str, str]:
    """Return the labels in texts of the form `NAME=VALUE`. Raises: `ConfigError`."""
    found: dict[str, str] = {}
    for text in texts:
        name, sign, value = text.partition("=")
        if not sign or not name:
            raise ConfigError(f"{text!r} is not a label; write NAME=VALUE")
        found[name] = value
    return found
