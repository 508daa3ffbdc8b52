"""`treadle serve` prints what its user puts into treadle.toml, and says what is wrong in it."""

import re
import tomllib
from pathlib import Path

import pytest
from tests.cli.command import Cli

from treadle import open_journal
from treadle.server.api_server import load_served
from treadle.server.catalog import AgentCatalog


@pytest.mark.parametrize("name", ["kim", "kim o", 'the "new" one', "Åse 🙂"])
def test_a_new_key_comes_with_valid_toml_for_any_name(cli: Cli, name: str) -> None:
    printed = cli("serve", "--new-key", name)
    _, _, lines = printed.err.partition("treadle.toml:\n")
    assert list(tomllib.loads(lines)["serve"]["keys"]) == [name], printed


def test_a_key_has_an_owner(cli: Cli) -> None:
    """Without a name, its client would see the runs of all others."""
    refused = cli("serve", "--new-key", "")
    assert (refused.code, refused.out) == (2, "")
    assert "--new-key is empty" in refused.err
    cli.write("treadle.toml", f'[serve.keys.""]\nsha256 = "{"0" * 64}"\n')
    refused = cli("serve", "--config", "treadle.toml", "--model", "mock:echo", "--port", "0")
    assert refused.code == 2
    assert "the name of a key's owner is empty" in refused.err


def test_a_new_key_is_printed_as_json(cli: Cli) -> None:
    [printed] = cli("serve", "--new-key", "kim", "--json").lines
    assert sorted(printed) == ["key", "name", "sha256"]


async def test_agents_that_cannot_be_used_are_told_when_the_server_starts(tmp_path: Path) -> None:
    file = tmp_path / "treadle.toml"
    file.write_text(
        '[agents.good]\nmodel = "mock:echo"\n[agents.bad]\nmodel = "mock:eco"\n'
        '[agents.worse]\nmodel = "mock:echo"\ntools = ["fils"]\n'
    )
    served = load_served(file, None)
    with open_journal("memory:") as journal:
        faults = AgentCatalog(served.config, journal, served.names).faults()
    assert [re.sub(r" cannot be used[^:]*:", ":", fault).split(";")[0] for fault in faults] == [
        "'bad': there is no model 'mock:eco'",
        "'worse': unknown toolset 'fils'",
    ]


def test_a_server_that_could_serve_nothing_does_not_start(cli: Cli) -> None:
    found = cli("serve", "--model", "mock:eco", "--port", "0")
    assert found.code == 2
    assert "error: nothing can be served: 'mock:eco' cannot be used" in found.err
    assert "did you mean 'mock:echo'?" in found.err
