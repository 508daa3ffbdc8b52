"""The export of runs over HTTP: in the formats, and with the code, of `treadle export`."""

from contextlib import nullcontext
from typing import Annotated

from fastapi import Query
from msgspec import Struct

from treadle.core.texts.hiding import hide_servers
from treadle.export.groups import GroupBy
from treadle.export.run_exporter import RunExporter, TokenOptions, check_format
from treadle.export.token_exporter import TOKEN_FORMATS
from treadle.journal.protocol import Journal
from treadle.server.admission.access import ApiCaller
from treadle.server.shown_runs import journal_of, show_group
from treadle.trajectory.tokens.masks import check_mask_names


class ExportForm(Struct, frozen=True):
    """How runs are exported."""

    format: str
    options: TokenOptions
    media_type = "application/x-ndjson"

    def write(self, journal: Journal, run_ids: list[str], caller: ApiCaller) -> tuple[bytes, list[str]]:
        """Return the lines of the runs as a client sees them, and why runs or groups were left out. Blocks."""
        lines: list[bytes] = []
        left_out: list[str] = []
        tell = str if caller.sees_all else hide_servers
        is_tokens = self.format in TOKEN_FORMATS
        exporter = RunExporter(
            journal if is_tokens else journal_of(journal, caller),
            self.format,
            lambda run_id, why: left_out.append(tell(why)),
            lambda run_id: nullcontext(),
            None if caller.sees_all else show_group,
        )
        if is_tokens:
            exporter.write_tokens(run_ids, None, self.options, lines.extend)
        else:
            lines.extend(exporter.lines(run_ids, lambda run_id: None))
        return b"".join([line + b"\n" for line in lines]), left_out


def read_form(
    format_: Annotated[str, Query(alias="format", description="as for `treadle export --format`")] = "openai",
    mask: Annotated[str, Query(description="the loss mask of formats with tokens")] = "all",
    group_by: GroupBy = GroupBy.GROUP,
    reward: Annotated[str | None, Query(description="the reward of formats with tokens")] = None,
) -> ExportForm:
    """Return the form that the parameters of a request ask for. Raises: `ConfigError`."""
    check_format(format_)
    return ExportForm(format_, TokenOptions(group_by, check_mask_names(mask), reward))
