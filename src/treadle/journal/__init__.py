"""Journals, which keep runs. `open_journal` opens one from a path.

Read first: `protocol.py` (what a store does, leases and inboxes included), `memory.py` (the smallest store),
`registry.py` (stores by the scheme of an address) and `tables/` (what stores in databases share; `sqlite/` and
`postgres/` are two of them). `listing.py` has the facts about a run that lists show, and `jsonl.py` the form in
which runs travel. `hub.py` gives the events and the live output of a run to any number of listeners.

To add a store, write a `Journal` and a function of an address and `StoreOptions` that opens it, and add a line to
`STORES` in `registry.py`, or an entry point of the group `treadle.journal`. Add its levels to `KINDS` in
`tests/contract/test_journal.py`, and its way to be opened to the fixture `reopen` there.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.journal.hub import listen
    from treadle.journal.protocol import Journal, RunFilter, RunInfo, RunWriter
    from treadle.journal.registry import open_journal

__all__ = ["Journal", "RunFilter", "RunInfo", "RunWriter", "listen", "open_journal"]


def __getattr__(name: str) -> object:
    from treadle.core.registry import load_name

    return load_name(__name__, name, _WHERE)


_WHERE = {
    "Journal": "treadle.journal.protocol",
    "RunFilter": "treadle.journal.protocol",
    "RunInfo": "treadle.journal.protocol",
    "RunWriter": "treadle.journal.protocol",
    "listen": "treadle.journal.hub",
    "open_journal": "treadle.journal.registry",
}
