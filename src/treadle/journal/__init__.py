"""Journals, which keep runs. `open_journal` opens one from a path."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.journal.protocol import Journal, RunFilter, RunInfo, RunWriter
    from treadle.journal.registry import open_journal

__all__ = ["Journal", "RunFilter", "RunInfo", "RunWriter", "open_journal"]


def __getattr__(name: str) -> object:
    from treadle.core.registry import load_name

    return load_name(__name__, name, _WHERE)


_WHERE = {
    "Journal": "treadle.journal.protocol",
    "RunFilter": "treadle.journal.protocol",
    "RunInfo": "treadle.journal.protocol",
    "RunWriter": "treadle.journal.protocol",
    "open_journal": "treadle.journal.registry",
}
