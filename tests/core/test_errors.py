"""The classes of errors."""

import re
from collections import Counter
from pathlib import Path

import treadle


def test_no_two_errors_have_the_same_name() -> None:
    """Rules out two classes of one name, of which a caller catches one and misses the other."""
    sources = Path(treadle.__file__).parent.rglob("*.py")
    found = Counter(
        name
        for path in sources
        for name in re.findall(r"^class (\w+Error)\b", path.read_text(), re.MULTILINE)
    )
    assert len(found) > 20
    assert [name for name, count in found.items() if count > 1] == []
