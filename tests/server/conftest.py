"""What all tests of the server share."""

from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def one_authority(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let clients trust one authority, as tests use no TLS: SDKs read all those of the machine for each client."""
    monkeypatch.setenv("SSL_CERT_FILE", str(Path(__file__).parents[1] / "data" / "tls" / "authority.pem"))
