"""The outcomes of tests for programs: JUnit XML, and annotations of GitHub's workflows."""

import os
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

from treadle.core.errors import ConfigError
from treadle.regression.live_scores import ThresholdVerdict
from treadle.regression.regression_suite import RecordingOutcome

_ILLEGAL = {
    code: "�" for code in (*range(32), *range(0xD800, 0xE000), 0xFFFE, 0xFFFF) if code not in (9, 10, 13)
}
"""The characters that XML cannot have."""


def write_junit(
    outcomes: Sequence[RecordingOutcome], verdicts: Sequence[ThresholdVerdict], path: Path
) -> None:
    """Write a JUnit report: a test case for each recording and for each threshold.

    Raises: `ConfigError` if the file cannot be written.
    """
    failures = [item.has_failed and item.error is None for item in outcomes] + [
        not item.is_kept for item in verdicts
    ]
    errors = sum([item.error is not None for item in outcomes])
    suite = ElementTree.Element(
        "testsuite",
        name="treadle",
        tests=str(len(failures)),
        failures=str(sum(failures)),
        errors=str(errors),
        time=f"{sum([item.seconds for item in outcomes]):.3f}",
    )
    for item in outcomes:
        case = ElementTree.SubElement(
            suite,
            "testcase",
            classname="agent_runs",
            name=item.name,
            file=str(item.path),
            time=f"{item.seconds:.3f}",
        )
        if item.has_failed:
            kind = "failure" if item.error is None else "error"
            text = item.text().translate(_ILLEGAL)
            ElementTree.SubElement(case, kind, message=text.partition("\n")[0]).text = text
    for verdict in verdicts:
        case = ElementTree.SubElement(suite, "testcase", classname="scores", name=verdict.name)
        if not verdict.is_kept:
            ElementTree.SubElement(case, "failure", message=verdict.text).text = verdict.text
    root = ElementTree.Element("testsuites")
    root.append(suite)
    try:
        path.write_bytes(ElementTree.tostring(root, "utf-8", xml_declaration=True) + b"\n")
    except OSError as error:
        raise ConfigError(f"cannot write the report {str(path)!r}: {error.strerror}") from error


def annotate(outcomes: Sequence[RecordingOutcome], verdicts: Sequence[ThresholdVerdict]) -> list[str]:
    """Return the workflow commands by which GitHub shows failures at the lines of recordings, and undecided scores
    as warnings. Paths are relative to the root of the repository."""
    root = Path(os.environ.get("GITHUB_WORKSPACE") or Path.cwd())
    lines = []
    for item in outcomes:
        if item.has_failed:
            path = item.path.resolve()
            shown = path.relative_to(root.resolve()) if path.is_relative_to(root.resolve()) else path
            title = f"treadle test: {item.name}"
            place = f"file={_escape(shown.as_posix())},line={item.line},title={_escape(title)}"
            lines.append(f"::error {place}::{_escape(item.text(), is_message=True)}")
    for verdict in verdicts:
        if not verdict.is_kept or not verdict.is_decided:
            kind = "warning" if verdict.is_kept else "error"
            lines.append(f"::{kind} title=treadle test::{_escape(verdict.text, is_message=True)}")
    return lines


def _escape(text: str, *, is_message: bool = False) -> str:
    text = text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
    return text if is_message else text.replace(":", "%3A").replace(",", "%2C")
