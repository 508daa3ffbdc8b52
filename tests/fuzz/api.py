"""Fuzzing of the HTTP API by its own OpenAPI document: `python -m tests.fuzz.api FOLDER SECONDS`, or `make fuzz`.

FOLDER has the package `schemathesis`, whose versions of other packages the tests do not share. No request may be
answered with an error of the server, or in another form than the document says. The status 503 is no such error: it
refuses `guardrails`, which the server does not have.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.server.test_responses import CONFIG
from tests.server.test_runs import Killed

_CHECKS = "not_a_server_error,response_schema_conformance,status_code_conformance,content_type_conformance"
_SETTINGS = """
[checks]
not_a_server_error.expected-statuses = ["2xx", "3xx", "4xx", "503"]
"""


def fuzz(package: Path, seconds: int) -> int:
    """Fuzz a new server, and return 0 if nothing was found."""
    with tempfile.TemporaryDirectory() as name:
        Path(name, "treadle.toml").write_text(CONFIG)
        settings = Path(name, "schemathesis.toml")
        settings.write_text(_SETTINGS)
        server = Killed(Path(name))
        url = server.start()
        asked = ["--phases", "fuzzing,stateful", "--max-time", str(seconds), "--continue-on-failure"]
        asked += ["--checks", _CHECKS, "--suppress-health-check", "all", "--warnings", "off"]
        try:
            command = [sys.executable, "-m", "schemathesis.cli", "--config-file", str(settings), "run"]
            command += [f"{url}/openapi.json", *asked]
            return subprocess.run(command, env={**os.environ, "PYTHONPATH": str(package)}).returncode
        finally:
            server.kill()


if __name__ == "__main__":
    sys.exit(fuzz(Path(sys.argv[1]).absolute(), int(sys.argv[2])))
