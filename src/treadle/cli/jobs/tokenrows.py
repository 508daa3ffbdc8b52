"""What `treadle export` does with token formats: runs as groups, as rows with token ids."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from treadle.cli.jobs.journals import Apart
from treadle.cli.terminal.output import print_lines, print_note, write_count

if TYPE_CHECKING:
    from treadle.export.groups import ExportedTokens, Group
    from treadle.export.token_exporter import LossMask
    from treadle.journal.protocol import Journal


class TokenOptions(Struct, frozen=True):
    """The options of `treadle export` for token formats."""

    group_by: str = "group"
    mask: str = "all"
    reward: str | None = None


def export_tokens(
    journal: "Journal",
    run_ids: Sequence[str],
    format_: str,
    out: Path | None,
    options: TokenOptions,
    on_skip: Callable[[str, str], None],
    apart: Apart,
) -> bool:
    """Write the groups of runs, say whether every sampled token is in them once, and return whether there are
    any."""
    from treadle.core.errors import ExportError
    from treadle.export.groups import ExportedTokens, GroupBy, find_groups
    from treadle.export.row_files import open_group_writer
    from treadle.export.token_exporter import export_groups

    tally, count = ExportedTokens(), 0
    groups: dict[str, list[str]] = {}
    for run_id in run_ids:
        with apart.guard(run_id):
            for group_id, found in find_groups(journal, [run_id], GroupBy(options.group_by)).items():
                groups.setdefault(group_id, []).extend(found)
    made = _load(journal, groups, tally, options.reward, on_skip)
    mask = _make_mask(journal, run_ids, options.mask)
    if out is None:
        for rows in export_groups(made, format_, mask, on_skip):
            print_lines(rows.splitlines())
            count += 1
    else:
        with open_group_writer(format_, out, mask) as put:
            for group in made:
                try:
                    put(group)
                    count += 1
                except ExportError as error:
                    on_skip(group.group_id, str(error))
        print_note(f"{write_count(count, 'group')} written to {str(out)!r}")
    print_note(f"tokens: {tally.total}")
    return count > 0


def _load(
    journal: "Journal",
    groups: dict[str, list[str]],
    tally: "ExportedTokens",
    reward: str | None,
    on_skip: Callable[[str, str], None],
) -> "Iterator[Group]":
    from treadle.export.groups import load_groups
    from treadle.scoring.advantages import group_relative

    for found in load_groups(journal, groups, tally, reward=reward, advantages=group_relative):
        if isinstance(found, tuple):
            on_skip(*found)
        else:
            yield found


def _make_mask(journal: "Journal", run_ids: Sequence[str], text: str) -> "LossMask":
    from treadle.trajectory.tokens.masks import make_mask
    from treadle.trajectory.tokens.token_texts import load_decoders

    if text == "all":
        return make_mask(text)
    trusted = [run_id for run_id in run_ids if journal.is_trusted(run_id)]
    bodies = (event.body for run_id in trusted for event in journal.read(run_id))
    return make_mask(text, decode=load_decoders(bodies))
