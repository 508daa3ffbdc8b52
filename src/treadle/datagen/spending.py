"""What a dataset has cost so far, in all processes that worked on it."""

from treadle.core.types import Usage
from treadle.datagen.conversations.bill import Bill
from treadle.datagen.scenarios.types import sample_id_of
from treadle.datagen.topics.writer import RUN_PREFIX
from treadle.jobs.ledger import Counts, Ledger
from treadle.jobs.meter import Meter
from treadle.journal.protocol import Journal, RunFilter


def add_spent(meter: Meter, counts: Counts, ledger: Ledger, journal: Journal) -> None:
    """Add to `meter` what was spent before this process: on topics, on samples that were counted, and on samples
    that were interrupted. `counts` are those of the ledger."""
    meter.add(counts.input_tokens, counts.output_tokens, counts.cost_usd)
    topics = bill_of(journal, RUN_PREFIX)
    meter.add(topics.usage.input_tokens, topics.usage.output_tokens, topics.cost_usd)
    for item in ledger.open_items():
        runs = bill_of(journal, f"{sample_id_of(item.number)}-")
        known = ledger.spent(item.number)
        cost = None if runs.cost_usd is None else runs.cost_usd - known.cost_usd
        meter.add(
            runs.usage.input_tokens - known.input_tokens, runs.usage.output_tokens - known.output_tokens, cost
        )


def bill_of(journal: Journal, prefix: str) -> Bill:
    """Return what the runs whose ids begin with `prefix` have used."""
    bill = Bill()
    for info in journal.runs(RunFilter(id_prefix=prefix)):
        bill.add(Usage(info.input_tokens, info.output_tokens), info.cost_usd)
    return bill
