"""`treadle memory`: every command, on one journal."""

import pytest
from tests.cli.command import Cli

from treadle.cli.table import MOVED


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
        ("self_facts-1", "Kim lives in Hamar."),
        ("worldview-2", "Trains run late."),
    ]
    assert "'default' has no memories about 'default'" in cli("memory", "list").err
    assert "Hamar" in cli("memory", "search", "who lives in Hamar?", "--user", "kim").out
    assert "nothing was found" in cli("memory", "search", "zebra", "--user", "kim").err
    assert cli("memory", "forget", "self_facts-1", "--user", "kim").code == 0
    gone = cli("memory", "forget", "self_facts-1", "--user", "kim")
    assert "there is no memory 'self_facts-1'" in gone.err
    assert "is not the id of a memory" in cli("memory", "forget", "x", "--user", "kim").err


def test_what_still_says_something_like_the_forgotten_is_told(cli: Cli) -> None:
    cli("memory", "add", "Kim is allergic to nuts.")
    cli("memory", "add", "Nuts are what Kim is allergic to, says the doctor.", "--store", "episodic")
    cli("memory", "add", "Kim likes tea.")
    gone = cli("memory", "forget", "self_facts-1")
    assert gone.err.strip() == "1 forgotten; these say something similar:"
    assert [line.split()[0] for line in gone.out.splitlines()] == ["episodic-2"]
    gone = cli(
        "chat", "-m", "mock:echo", "--memory", text="/forget\n/forget episodic-2 x\n/forget episodic-2\n"
    )
    assert "/memory lists them" in gone.err
    assert "'x' is not the id of a memory" in gone.err
    assert "1 forgotten\n" in gone.err
    assert [line.split()[0] for line in cli("memory", "list").out.splitlines()] == ["self_facts-3"]


def test_the_file_of_a_persona_names_it(cli: Cli) -> None:
    cli.write("ola.yaml", "name: Ola\nrole: a helper\nmemory: {user: kim}\n")
    assert cli("memory", "add", "Kim lives in Oslo.", "--persona", "ola.yaml").code == 0
    assert "Kim lives in Oslo." in cli("memory", "list", "--persona", "Ola", "--user", "kim").out
    assert "cannot read the persona 'nobody.yaml'" in cli("memory", "list", "--persona", "nobody.yaml").err


def test_a_server_of_embeddings_that_is_dead_is_told(cli: Cli) -> None:
    cli("memory", "add", "Kim lives in Oslo.")
    env = {"VLLM_BASE_URL": "http://127.0.0.1:9/v1"}
    found = cli("memory", "search", "Oslo", "--embeddings", "vllm:m", env=env)
    assert "by their words alone" in found.err
    assert "Kim lives in Oslo." in found.out


@pytest.mark.parametrize("words", [words for words in MOVED if words.startswith("memory ")])
def test_what_is_only_in_python_is_told(cli: Cli, words: str) -> None:
    done = cli(*words.split(), "--anything", "x")
    assert (done.code, done.out, done.err.count("\n")) == (2, "", 1), done
    assert "docs/memory.md" in done.err
