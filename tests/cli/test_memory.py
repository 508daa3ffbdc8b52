"""`treadle memory`: every command, on one journal."""

from tests.cli.command import Cli


def test_the_commands(cli: Cli) -> None:
    assert "no journal" in cli("memory", "list").err
    assert cli("memory", "add", "Kim lives in Oslo.", "--user", "kim").code == 0
    assert cli("memory", "add", "Trains run late.", "--store", "worldview", "--user", "kim").code != 0
    assert (
        cli(
            "memory",
            "add",
            "Trains run late.",
            "--store",
            "worldview",
            "--epistemic",
            "belief",
            "--user",
            "kim",
        ).code
        == 0
    )
    again = cli("memory", "add", "Kim lives in Hamar.", "--replaces", "self_facts-1", "--user", "kim")
    assert "self_facts-1" in again.out
    assert "says the same" in cli("memory", "add", "kim lives in hamar", "--user", "kim").err
    listed = cli("memory", "list", "--user", "kim", "--json").lines
    assert [(item["entry_id"], item["text"]) for item in listed] == [
        ("worldview-2", "Trains run late."),
        ("self_facts-1", "Kim lives in Hamar."),
    ]
    assert "'default' has no memories about 'default'" in cli("memory", "list").err
    assert "Hamar" in cli("memory", "search", "who lives in Hamar?", "--user", "kim").out
    assert "nothing was found" in cli("memory", "search", "zebra", "--user", "kim").err
    history = cli("memory", "history", "self_facts-1", "--user", "kim", "--json").lines
    assert [item["version"] for item in history] == [1, 2]
    assert "Oslo" in cli("memory", "rollback", "self_facts-1", "1", "--user", "kim").out
    assert "version: 3" in cli("memory", "show", "self_facts-1", "--user", "kim").out
    audit = cli("memory", "audit", "--user", "kim").out
    assert [line.split()[2] for line in audit.splitlines()] == [
        "rolled_back",
        "merged",
        "changed",
        "added",
        "refused",
        "added",
    ]
    assert cli("memory", "forget", "self_facts-1", "--user", "kim").code == 0
    gone = cli("memory", "show", "self_facts-1", "--user", "kim")
    assert "there is no memory 'self_facts-1'" in gone.err
    assert "is not the id of a memory" in cli("memory", "show", "x", "--user", "kim").err


def test_a_server_of_embeddings_that_is_dead_is_told(cli: Cli) -> None:
    cli("memory", "add", "Kim lives in Oslo.")
    env = {"VLLM_BASE_URL": "http://127.0.0.1:9/v1"}
    found = cli("memory", "search", "Oslo", "--embeddings", "vllm:m", env=env)
    assert "by their words alone" in found.err
    assert "Kim lives in Oslo." in found.out
    assert cli("memory", "embed", "--embeddings", "vllm:m", env=env).code != 0
