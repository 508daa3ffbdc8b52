"""Whether commands can be shut in on the machine that the tests run on."""

import sys

import pytest

from treadle.sandbox.bubblewrap import blocking_sysctls, find_bwrap
from treadle.sandbox.doctor import find_fault

_CANNOT = sys.platform != "linux" or (find_bwrap() is not None and bool(blocking_sysctls()))
needs_sandbox = pytest.mark.skipif(
    _CANNOT and find_fault() is not None, reason=f"no sandbox can be made here: {find_fault()}"
)
"""Skips where the system forbids user namespaces. On a Linux that allows them, missing programs are a failure."""
