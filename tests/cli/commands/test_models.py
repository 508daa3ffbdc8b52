"""`treadle models`, `treadle init`, and runs with named models."""

import json

from tests.cli.command import Cli
from tests.cli.conftest import Script


def test_init_leaves_no_file_that_is_cut_off(cli: Cli) -> None:
    (cli.folder / "treadle.schema.json").mkdir()
    done = cli("init")
    assert (done.code, "cannot write" in done.err) == (2, True), done
    assert [path.name for path in cli.folder.iterdir()] == ["treadle.schema.json"]


def test_providers_of_treadle_are_not_called_foreign(cli: Cli) -> None:
    listed = cli("models", "list").out
    assert "  mock:echo " in listed
    assert all(f"  mock:{name} " in listed for name in ("echo", "teacher", "mediocre"))
    assert "treadle.testbed" not in listed
    assert "from another package" not in listed


def test_init_list_and_run_with_a_named_model(cli: Cli, script: Script) -> None:
    done = cli("init")
    assert (done.code, sorted(path.name for path in cli.folder.iterdir())) == (
        0,
        ["treadle.schema.json", "treadle.toml"],
    ), done
    again = cli("init")
    assert (again.code, "exists; --force replaces it" in again.err) == (2, True)
    assert cli("init", "--force").code == 0
    listed = cli("models", "list")
    assert "* fast" in listed.out
    assert "OPENAI_API_KEY is not set" in listed.out
    assert json.loads(cli("schema", "config").out) == json.loads(
        (cli.folder / "treadle.schema.json").read_text()
    )
    server = script(lambda body: {"content": f"I am {body['model']}"})
    cli.env |= {
        "OPENAI_API_KEY": "k",
        "TREADLE_MODELS__LOCAL__BASE_URL": server.url,
        "OPENAI_BASE_URL": server.url,
    }
    # The default model of the file, and a named one.
    assert cli("run", "Who are you?", "-q").out.strip() == "I am gpt-5-mini"
    done = cli("run", "Who are you?", "-m", "local", "-q", "--run-id", "r")
    assert done.out.strip() == "I am Qwen/Qwen3-8B", done
    # Another process resolves the name again.
    forked = cli("fork", "r", "--at", "2", "-q")
    assert forked.out.strip() == "I am Qwen/Qwen3-8B", forked


def test_mistakes_are_told_in_a_line(cli: Cli) -> None:
    cli.write("treadle.toml", "[models.fast]\nmodel = 'vllm:m'\ntemprature = 1\n")
    for arguments in (("models", "list"), ("run", "hi"), ("models", "check", "fast")):
        done = cli(*arguments)
        assert (done.code, "did you mean 'temperature'?" in done.err) == (2, True), done
    cli.write("treadle.toml", "[models.fast]\nmodel = 'vllm:m'\n")
    done = cli("run", "hi", "-m", "fst")
    assert (done.code, "did you mean 'fast'?" in done.err) == (2, True), done
    done = cli("models", "check", "vllm:m", "--base-url", "http://127.0.0.1:9/v1")
    assert (done.code, "is the server running?" in done.out) == (1, True), done
    assert cli("init", "x.json").code == 2


def test_check_tells_the_grade(cli: Cli, script: Script) -> None:
    server = script(lambda body: {"content": "ready"})
    done = cli("models", "check", "vllm:m", "--base-url", server.url)
    assert (done.code, "grade   text" in done.out) == (0, True), done
    assert "no       tools" in done.out
    lines = cli("models", "check", "vllm:m", "--base-url", server.url, "--json").lines
    assert lines[-1] == {"grade": "text", "has_policy_logprobs": None, "output_mode": "text"}
    assert lines[0]["name"] == "answers"


def test_an_answer_in_a_schema(cli: Cli, script: Script) -> None:
    cli.write("city.json", '{"type": "object", "required": ["name"]}')
    answers = iter(["Oslo", '{"name": "Oslo"}'])
    server = script(lambda body: {"content": next(answers)})
    options = ("-m", "vllm:m", "--base-url", server.url, "-q")
    done = cli("run", "Name a city.", "--schema", "city.json", *options)
    assert (done.code, json.loads(done.out)) == (0, {"name": "Oslo"}), done
    assert server.requests[0]["response_format"]["json_schema"]["schema"]["required"] == ["name"]
    assert "it is not JSON" in server.requests[1]["messages"][-1]["content"]
    for name, text, message in (
        ("absent.json", None, "cannot read the schema 'absent.json'"),
        ("list.json", "[]", "it must be an object"),
        ("odd.yaml", "type: strange", "not a valid JSON Schema: /type: fits none of the alternatives: "),
    ):
        if text is not None:
            cli.write(name, text)
        done = cli("run", "x", "--schema", name, *options)
        assert (done.code, message in done.err) == (2, True), done


def test_a_key_is_stored_and_listed(cli: Cli) -> None:
    assert "treadle models set-key openai" in cli("run", "hi", "-m", "openai:m").err
    done = cli("models", "set-key", "openai", "--file", text="sk-secret-1\n")
    path = cli.folder / "config" / "treadle" / "keys.json"
    assert (done.code, done.err) == (0, f"stored OPENAI_API_KEY in {path}\n"), done
    assert "OPENAI_API_KEY is set" in cli("models", "list").out
    assert cli("models", "set-key", "openai", "--delete").err == "deleted OPENAI_API_KEY\n"
    assert "OPENAI_API_KEY is not set" in cli("models", "list").out
    for arguments, words in [
        (("opanai",), "did you mean 'openai'"),
        (("openai",), "the key is empty"),
    ]:
        wrong = cli("models", "set-key", *arguments, text="\n")
        assert (wrong.code, words in wrong.err) == (2, True), wrong
