"""The folder of a dataset: which file holds what."""

import re
from pathlib import Path

from msgspec import Struct

SPLIT_NAME = re.compile(r"\w+", re.ASCII)
"""The names that a split can have: what the Hub allows, and files on any disk."""


class _File:
    """The path of a file in the folder of a dataset."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, folder: "DatasetFolder", kind: object = None) -> Path:
        return folder.path / self._name


class DatasetFolder(Struct, frozen=True):
    """The files of a dataset."""

    path: Path

    journal = _File("journal.db")
    """The journal with all runs: topics, scenarios, users and conversations."""
    ledger = _File("ledger.db")
    """The plan and the outcome of each sample, and the index of duplicates."""
    topics = _File("topics.json")
    """The topics."""
    rows = _File("rows.jsonl")
    """The kept rows in the format `treadle`, in the order in which the ledger counted them."""
    rejected = _File("rejected.jsonl")
    """The rejected samples in the format `treadle`, each with its reasons."""
    config = _File("config.yaml")
    """The configuration that the dataset was made with."""
    splits = _File("splits.json")
    """The split of each topic, so that topics keep their splits when rows are added."""
    sources = _File("sources.json")
    """The datasets that a merged dataset was made of."""
    card = _File("README.md")
    """The dataset card."""
    report = _File("report.html")
    """The report with pictures."""

    def split(self, name: str, format: str, suffix: str = "jsonl") -> Path:
        """Return the file with the rows of a split in a format."""
        return self.path / f"{name}.{format}.{suffix}"
