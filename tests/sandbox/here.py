"""Whether commands can be sandboxed on the machine that runs the tests."""

import re
import sys

import pytest

from treadle.sandbox.commands.bubblewrap import blocking_sysctls, find_bwrap
from treadle.sandbox.commands.host import find_fault

_FAULT = find_fault()
_FORBIDDEN = re.compile(r"namespace|uid map|mount proc", re.IGNORECASE)
_IS_HOPELESS = sys.platform != "linux" or (
    _FAULT is not None
    and find_bwrap() is not None
    and bool(blocking_sysctls() or _FORBIDDEN.search(_FAULT.partition(";")[0]))
)
needs_sandbox = pytest.mark.skipif(_IS_HOPELESS, reason=f"no sandbox can be made here: {_FAULT}")
"""Skip the test if the system forbids user namespaces.

On a Linux that allows them, a missing program is a failure.
"""
