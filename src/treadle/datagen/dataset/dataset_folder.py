"""The folder of a dataset: which file holds what."""

import re
from pathlib import Path

from msgspec import Struct

SPLIT_NAME = re.compile(r"\w+", re.ASCII)
"""The names that a split can have: what the Hub allows, and files on any disk."""


class DatasetFolder(Struct, frozen=True):
    """The files of a dataset."""

    path: Path

    @property
    def journal(self) -> Path:
        """The journal with all runs: topics, scenarios, users and conversations."""
        return self.path / "journal.db"

    @property
    def ledger(self) -> Path:
        """The plan and the outcome of each sample, and the index of duplicates."""
        return self.path / "ledger.db"

    @property
    def topics(self) -> Path:
        """The topics."""
        return self.path / "topics.json"

    @property
    def rows(self) -> Path:
        """The kept rows in the format `treadle`, in the order in which the ledger counted them."""
        return self.path / "rows.jsonl"

    @property
    def rejected(self) -> Path:
        """The rejected samples in the format `treadle`, each with its reasons."""
        return self.path / "rejected.jsonl"

    @property
    def config(self) -> Path:
        """The configuration that the dataset was made with."""
        return self.path / "config.yaml"

    @property
    def splits(self) -> Path:
        """The split of each topic, so that topics keep their splits when rows are added."""
        return self.path / "splits.json"

    @property
    def sources(self) -> Path:
        """The datasets that a merged dataset was made of."""
        return self.path / "sources.json"

    @property
    def card(self) -> Path:
        """The dataset card."""
        return self.path / "README.md"

    @property
    def report(self) -> Path:
        """The report with pictures."""
        return self.path / "report.html"

    def split(self, name: str, format: str, suffix: str = "jsonl") -> Path:
        """Return the file with the rows of a split in a format."""
        return self.path / f"{name}.{format}.{suffix}"
