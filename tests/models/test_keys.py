"""Stored API keys: in a file of mode 0600 or in a keyring, after the environment, and only for their own server."""

from pathlib import Path

import keyring
import pytest
from keyring.backend import KeyringBackend
from keyring.backends.fail import Keyring as NoKeyring
from keyring.errors import PasswordDeleteError

from treadle.core.errors import ConfigError
from treadle.models.config.bare import bare_model
from treadle.models.config.recipe import load_config
from treadle.models.config.stored_keys import delete_key, find_key, key_file, store_key, where_is_key


class MemoryKeyring(KeyringBackend):
    """A keyring that lives as long as the test."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[tuple[str, str], str] = {}

    def get_password(self, service: str, username: str) -> str | None:
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        self.kept[service, username] = password

    def delete_password(self, service: str, username: str) -> None:
        if self.kept.pop((service, username), None) is None:
            raise PasswordDeleteError(username)


@pytest.fixture(autouse=True)
def _alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def ring() -> MemoryKeyring:
    made = MemoryKeyring()
    keyring.set_keyring(made)
    return made


@pytest.fixture
def no_ring() -> None:
    keyring.set_keyring(NoKeyring())


def test_a_key_is_kept_in_the_keyring(ring: MemoryKeyring, monkeypatch: pytest.MonkeyPatch) -> None:
    assert store_key("OPENAI_API_KEY", "k1") == where_is_key("OPENAI_API_KEY") == "the keyring"
    assert "k1" not in key_file().read_text()
    assert find_key("OPENAI_API_KEY") == "k1"
    monkeypatch.setenv("OPENAI_API_KEY", "k2")
    assert (find_key("OPENAI_API_KEY"), where_is_key("OPENAI_API_KEY")) == ("k2", "the environment")
    monkeypatch.delenv("OPENAI_API_KEY")
    assert delete_key("OPENAI_API_KEY")
    assert (find_key("OPENAI_API_KEY"), ring.kept) == (None, {})
    assert not delete_key("OPENAI_API_KEY")


@pytest.mark.usefixtures("no_ring")
def test_without_a_keyring_a_key_is_kept_in_a_file(tmp_path: Path) -> None:
    assert store_key("OPENAI_API_KEY", "k1") == str(key_file())
    store_key("OTHER_KEY", "k2", in_file=True)
    assert key_file().stat().st_mode & 0o777 == 0o600
    assert (find_key("OPENAI_API_KEY"), find_key("OTHER_KEY"), find_key("X")) == ("k1", "k2", None)
    assert [path.name for path in key_file().parent.iterdir()] == ["keys.json"]
    key_file().chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        find_key("OPENAI_API_KEY")
    key_file().chmod(0o600)
    key_file().write_text("[1]")
    with pytest.raises(ConfigError, match="not a file of API keys"):
        find_key("OPENAI_API_KEY")


@pytest.mark.usefixtures("no_ring")
def test_a_stored_key_goes_to_its_own_server_only(tmp_path: Path) -> None:
    store_key("OPENAI_API_KEY", "stored-key")
    assert bare_model("openai:m")._headers["authorization"] == "Bearer stored-key"
    assert "authorization" not in bare_model("openai:m", base_url="http://127.0.0.1:9/v1")._headers
    toml = tmp_path / "treadle.toml"
    toml.write_text(
        "[models.own]\nmodel = 'openai:m'\nbase_url = 'http://127.0.0.1:9/v1'\napi_key_env = 'MINE'\n"
    )
    with pytest.raises(ConfigError, match="set-key MINE"):
        load_config(toml).bare("own")
    store_key("MINE", "mine-key")
    assert load_config(toml).bare("own")._headers["authorization"] == "Bearer mine-key"
