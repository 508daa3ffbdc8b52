"""The agreement of scorers, such as a judge, with labels that people gave to the samples of an evaluation."""

import csv
import io
from pathlib import Path

from treadle.core.errors import ConfigError
from treadle.evals.evaluation_results import Results
from treadle.journal.named_files import explain_unread
from treadle.scoring.statistics import Agreement, measure_agreement

_GOOD, _BAD = ("1", "true", "yes", "good"), ("0", "false", "no", "bad")


def read_labels(path: Path) -> dict[str, bool]:
    """Return the labels in a CSV file by run, from its columns `run_id` and `label`. Empty labels are left out.

    Raises: `ConfigError` if the file cannot be read, or has another label.
    """
    try:
        lines = csv.DictReader(io.StringIO(path.read_text(encoding="utf-8-sig")))
        found = {(place, line.get("run_id")): line.get("label") for place, line in enumerate(lines, 2)}
    except (OSError, ValueError, csv.Error) as error:
        if isinstance(error, OSError):
            raise explain_unread("the labels ", path, error) from error
        raise ConfigError(f"{str(path)!r} is no CSV file: {error}") from error
    if any(None in (run_id, label) for (_, run_id), label in found.items()) or not found:
        raise ConfigError(
            f"{str(path)!r} needs the columns 'run_id' and 'label'; write it with `--report csv=FILE`, and add the "
            "labels"
        )
    labels: dict[str, bool] = {}
    for (place, run_id), label in found.items():
        word = (label or "").strip().casefold()
        if word and word not in _GOOD + _BAD:
            raise ConfigError(
                f"{str(path)!r}, line {place}: the label is {label!r}; write one of {', '.join(_GOOD + _BAD)}"
            )
        if word:
            labels[run_id or ""] = word in _GOOD
    return labels


def measure_labels(results: Results, labels: dict[str, bool]) -> dict[str, Agreement]:
    """Return how far each scorer says the same as the labels. Its values from 0.5 on are good.

    Raises: `ConfigError` if no sample with a score has a label.
    """
    names = list(dict.fromkeys([name for sample in results.samples for name in sample.details.scores]))
    found = {}
    for name in names:
        scores = {
            sample.run_id: sample.details.scores[name]
            for sample in results.samples
            if name in sample.details.scores
        }
        if (agreement := measure_agreement(labels, scores)) is not None:
            found[name] = agreement
    if not found:
        raise ConfigError(
            f"no sample with a score in {results.path!r} has a label; run ids are such as 'eval-1'"
        )
    return found
