"""`treadle serve` prints what its user puts into treadle.toml."""

import tomllib

import pytest
from tests.cli.command import Cli


@pytest.mark.parametrize("name", ["kim", "kim o", 'the "new" one', "Åse 🙂"])
def test_a_new_key_comes_with_valid_toml_for_any_name(cli: Cli, name: str) -> None:
    printed = cli("serve", "--new-key", name)
    _, _, lines = printed.err.partition("treadle.toml:\n")
    assert list(tomllib.loads(lines)["serve"]["keys"]) == [name], printed


def test_a_new_key_is_printed_as_json(cli: Cli) -> None:
    [printed] = cli("serve", "--new-key", "kim", "--json").lines
    assert sorted(printed) == ["key", "name", "sha256"]
