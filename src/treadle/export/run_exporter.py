"""The export of runs from a journal, as rows, as groups with tokens, or as lines of a journal."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import SpooledTemporaryFile

from msgspec import Struct, field

from treadle.core.errors import ConfigError, ExportError
from treadle.core.registry import name_known
from treadle.export import FORMATS, export_rows, load_row
from treadle.export.exporter import wants_tokens
from treadle.export.groups import ExportedTokens, Group, GroupBy, find_groups, load_groups
from treadle.export.row_files import open_group_writer, open_writer
from treadle.export.token_exporter import TOKEN_FORMATS, LossMask, check_same_renderer, encode_group
from treadle.export.whole import write_whole
from treadle.journal.jsonl import export_run
from treadle.journal.protocol import Journal
from treadle.trajectory.tokens.trajectories import Trajectory

JOURNAL_FORMAT = "journal"
_IN_MEMORY_BYTES = 16 * 1024 * 1024
"""How many bytes of a run's lines are kept in memory before they go to a temporary file."""


def check_format(name: str) -> None:
    """Check that runs can be exported in a format. Raises: `ConfigError` with the nearest names."""
    if name != JOURNAL_FORMAT and name not in FORMATS and name not in TOKEN_FORMATS:
        known = [*FORMATS.names(), *TOKEN_FORMATS.names(), JOURNAL_FORMAT]
        raise ConfigError(f"there is no format {name!r:.100}{name_known(name, known, 'the formats are')}")


class TokenOptions(Struct, frozen=True):
    """The options of formats with tokens."""

    group_by: GroupBy = GroupBy.GROUP
    mask: str = "all"
    """The name of the loss mask, which says which tokens are trained on."""
    reward: str | None = None
    """The name of the reward; `None`: the sum of all rewards."""


class RunExporter(Struct):
    """An export of runs in one format. A damaged run is left out completely."""

    journal: Journal
    format: str
    on_skip: Callable[[str, str], None]
    """A function that is called with each run or group that is left out, and the reason."""
    guard: Callable[[str], AbstractContextManager[None]]
    """The work on a run is done within `guard(run_id)`, which may catch its errors."""
    show: Callable[[Group], Group] | None = None
    """A function that returns a group as its reader may see it. `None`: the reader sees all."""
    tally: ExportedTokens = field(default_factory=ExportedTokens)
    groups: int = 0
    shortened: int = 0
    """How many rows lack turns that are not trained on, for which the format has no place."""

    def lines(self, run_ids: Sequence[str], on_done: Callable[[str], None]) -> Iterator[bytes]:
        """Yield the lines of rows, or of a journal. `on_done` is called with each run after its lines."""
        for run_id in run_ids:
            with SpooledTemporaryFile(_IN_MEMORY_BYTES) as file, self.guard(run_id):
                if self.format == JOURNAL_FORMAT:
                    file.writelines(line + b"\n" for line in export_run(self.journal, run_id))
                else:
                    file.writelines(export_rows(self.journal, [run_id], self.format, on_skip=self.on_skip))
                file.seek(0)
                yield from (line.rstrip(b"\n") for line in file)
            on_done(run_id)

    def write(self, run_ids: Sequence[str], out: Path, on_done: Callable[[str], None]) -> int:
        """Write the rows of runs, or the lines of a journal, to a file or folder, and return their number."""
        if self.format == JOURNAL_FORMAT:
            return write_whole(self.lines(run_ids, on_done), out)
        has_tokens = wants_tokens(FORMATS.load(self.format))
        with open_writer(self.format, out) as writer:
            for run_id in run_ids:
                with self.guard(run_id):
                    try:
                        writer.write(load_row(self.journal, run_id, with_tokens=has_tokens))
                    except ExportError as error:
                        self.on_skip(run_id, str(error))
                on_done(run_id)
        self.shortened = writer.shortened
        return writer.count

    def write_tokens(
        self,
        run_ids: Sequence[str],
        out: Path | None,
        options: TokenOptions,
        show: Callable[[list[bytes]], object],
    ) -> None:
        """Write the groups of runs to a file; without one, call `show` with the lines of each group."""
        mask = self._make_mask(run_ids, options)
        token_format = TOKEN_FORMATS.load(self.format)
        shown: AbstractContextManager[Callable[[Group], object]] = nullcontext(
            lambda group: show(encode_group(group, token_format, mask).splitlines())
        )
        tells_renderer = "tokenizer" in token_format.columns
        first: Trajectory | None = None
        with shown if out is None else open_group_writer(self.format, out, mask) as put:
            for group in self._load_groups(run_ids, options):
                try:
                    if not tells_renderer and (found := _find_trained(group)) is not None:
                        first = first or found
                        check_same_renderer(first, found)
                    put(group)
                    self.groups += 1
                except ExportError as error:
                    self.tally.leave_out(group.rollouts)
                    self.on_skip(group.group_id, str(error))

    def _load_groups(self, run_ids: Sequence[str], options: TokenOptions) -> Iterator[Group]:
        from treadle.scoring.advantages import group_relative

        groups: dict[str, list[str]] = {}
        for run_id in run_ids:
            with self.guard(run_id):
                for group_id, found in find_groups(self.journal, [run_id], options.group_by).items():
                    groups.setdefault(group_id, []).extend(found)
        for item in load_groups(
            self.journal, groups, self.tally, reward=options.reward, advantages=group_relative
        ):
            if isinstance(item, tuple):
                self.on_skip(*item)
            else:
                yield item if self.show is None else self.show(item)

    def _make_mask(self, run_ids: Sequence[str], options: TokenOptions) -> LossMask:
        from treadle.trajectory.tokens.masks import make_mask
        from treadle.trajectory.tokens.trajectories import load_decoders

        if options.mask == "all":
            return make_mask(options.mask)
        trusted = [run_id for run_id in run_ids if self.journal.is_trusted(run_id)]
        bodies = (event.body for run_id in trusted for event in self.journal.read(run_id))
        return make_mask(options.mask, decode=load_decoders(bodies))


def _find_trained(group: Group) -> Trajectory | None:
    """Return the first branch of a group that has sampled tokens."""
    branches = (item for rollout in group.rollouts for item in rollout.trajectories)
    return next((item for item in branches if item.sampled_tokens), None)
