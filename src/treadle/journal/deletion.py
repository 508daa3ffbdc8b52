"""The deletion of runs: which contents nobody needs afterwards, and the runs that go together with a run."""

import re
from collections.abc import Iterable

from treadle.core.errors import JournalError
from treadle.core.texts.patches import ReadStored, read_patch
from treadle.journal.protocol import Journal
from treadle.journal.run_info import CALLER, RunFilter

_DIGEST = re.compile(rb"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")


def digests_in(raw: bytes) -> set[str]:
    """Return every hash in encoded events, including hashes inside texts. Damaged events are searched too."""
    return {found.decode() for found in _DIGEST.findall(raw)}


def find_unused(
    mine: set[str], read: ReadStored, others: Iterable[bytes], stored: Iterable[tuple[str, bytes]]
) -> set[str]:
    """Return the contents that no other run needs: those of `mine`, and the contents that these are patches of.

    `read` returns what is stored under a hash. `others` are the encoded events of all other runs. `stored` has each
    hash with what is stored under it; a content is needed if another one that stays is a patch of it.
    """
    unused = _with_bases(mine, read)
    for raw in others if unused else ():
        unused -= digests_in(raw)
        if not unused:
            return unused
    bases: dict[str, str] = {}
    for digest, content in stored if unused else ():
        try:
            patch = read_patch(digest, content)
        except JournalError:  # a damaged patch cannot be read anyway
            continue
        if patch is not None:
            bases[digest] = patch.base.hex()
    # What stays needs its bases, and these need theirs.
    while needed := {base for digest, base in bases.items() if base in unused and digest not in unused}:
        unused -= needed
    return unused


def _with_bases(digests: set[str], read: ReadStored) -> set[str]:
    """Return the hashes that are stored, with those of the contents that they are patches of."""
    found: set[str] = set()
    left = set(digests)
    while left:
        digest = left.pop()
        try:
            patch = read_patch(digest, read(digest))
        except JournalError:  # it is the hash of something else, or damaged
            continue
        found.add(digest)
        if patch is not None and patch.base.hex() not in found:
            left.add(patch.base.hex())
    return found


def find_callees(journal: Journal, run_id: str) -> list[str]:
    """Return the id of a run, and those of the runs that its calls of agents drove, also indirectly. Blocks."""
    found = [run_id]
    for name in found:
        found += [info.run_id for info in journal.runs(RunFilter(labels={CALLER: name}))]
    return found
