"""Journals, which keep runs. `open_journal` opens one from a path.

Read first: `protocol.py` (what a store does, leases and inboxes included), `run_info.py` (the facts about runs that
lists show), `memory.py` (the smallest store) and `registry.py` (the stores by the scheme of an address). `tables/`
has what stores in databases share; read `tables/journal.py` there first. `sqlite/` and `postgres/` are two such
stores. `listing.py` computes the facts about a run from its events, and `jsonl.py` has the form in which runs
travel. `hub.py` gives any number of listeners the events and the live output of a run.

To add a store, write a `Journal` and a function that opens it, given an address and `StoreOptions`. Add a line to
`STORES` in `registry.py`, or an entry point of the group `treadle.journal`. Add its levels to `KINDS` in
`tests/contract/test_journal.py`, and the way to open it to the fixture `reopen` there. A store in another database
can be a `TableJournal` with a `TableReader` and a `Committer`.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from treadle.journal.hub import listen as listen
    from treadle.journal.protocol import Journal as Journal
    from treadle.journal.protocol import RunWriter as RunWriter
    from treadle.journal.registry import open_journal as open_journal
    from treadle.journal.run_info import RunFilter as RunFilter
    from treadle.journal.run_info import RunInfo as RunInfo


def __getattr__(name: str) -> object:
    from treadle.core.registry import load_name

    return load_name(__name__, name)
