"""`treadle generate --init`, `treadle schema generate` and `--dry-run`, which ask no model."""

import json
import os
from pathlib import Path
from threading import Thread

import pytest
from tests.cli.command import Cli
from tests.cli.scripted import Script

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.generating import SampleFeed
from treadle.cli.jobs.job_command import JobCommand
from treadle.cli.options.common import ViewOptions
from treadle.core.errors import ConfigError
from treadle.datagen.generation_progress import GenerationProgress
from treadle.jobs.job import JobEnd
from treadle.jobs.sections import read_config_file


def test_the_starter_has_a_plan_that_costs_nothing(cli: Cli) -> None:
    cli.write("starter.yaml", cli("generate", "--init").out)
    done = cli("generate", "starter.yaml", "--dry-run")
    assert done.code == 0, done
    assert "files: 9 rows in 'dataset-files'" in done.out
    assert not (cli.folder / "dataset-files").exists()
    schema = json.loads(cli("schema", "generate").out)
    assert "chained" in schema["$defs"]["Generation"]["properties"]["kinds"]["properties"]


def test_the_plan_needs_no_key_and_the_missing_one_is_told_after_it(cli: Cli) -> None:
    cli.write("a.yaml", "topics: {prompt: Tea}\ntools: {use: [files]}\n")
    done = cli("generate", "a.yaml", "--dry-run", "--json", "--set", "models.default=openai:gpt-5-mini")
    assert done.code == 2, done
    assert done.lines[0]["estimate"]["rows"] == 25
    assert "--set models.default: no API key for 'gpt-5-mini'" in done.err
    assert "OPENAI_API_KEY" in done.err


def test_the_plan_names_the_file_of_topics(cli: Cli) -> None:
    cli.write("own.jsonl", '{"path": ["Garden", "Pruning"]}\n{"path": ["Garden", "Seeds"]}\n')
    cli.write(
        "a.yaml", "models: {default: 'mock:teacher'}\ntopics: {load: own.jsonl}\ntools: {use: [files]}\n"
    )
    done = cli("generate", "a.yaml", "--dry-run")
    assert "loaded 2 leaf topics of '" in done.out, done
    assert "own.jsonl'" in done.out


def test_each_mistake_is_a_line(cli: Cli) -> None:
    cli.write("wrong.yaml", "topics: {promt: Tea}\noutput: {num_samples: 3}\n")
    done = cli("generate", "wrong.yaml", "--dry-run")
    assert done.code == 2, done
    assert done.err.splitlines() == [
        "error: 'wrong.yaml' has 2 mistakes:",
        "wrong.yaml:1: topics.promt: there is no such key; did you mean 'prompt'?",
        "wrong.yaml:2: output.num_samples: there is no such key; there is such a key in 'generation'",
    ]


def test_the_notes_of_a_deepfabric_file_are_told(cli: Cli) -> None:
    cli.write(
        "df.yaml",
        "llm: {provider: mock, model: teacher}\ntopics: {prompt: Tea, mode: tree, depth: 1, degree: 2}\n"
        "generation: {system_prompt: Write.}\noutput: {save_as: tea.jsonl, batch_size: 4}\n",
    )
    done = cli("generate", "df.yaml", "--dry-run")
    assert done.code == 0, done
    assert "tea: 3 rows in 'tea'" in done.out
    assert "df.yaml:4: output.batch_size: it is generation.window here" in done.err


def test_a_mistake_in_an_option_names_the_option(cli: Cli) -> None:
    cli.write("a.yaml", "models: {default: 'mock:teacher'}\ntopics: {prompt: Tea}\ntools: {use: [files]}\n")
    wrong = ("--num-samples", "0"), ("--out", "a.yaml"), ("--model", "x:y"), ("--workers", "local:0")
    for option, value in wrong:
        done = cli("generate", "a.yaml", option, value)
        assert done.code == 2, done
        assert done.err.startswith(f"error: {option}: "), done


def test_the_address_and_the_key_of_a_server_are_options(cli: Cli, script: Script) -> None:
    """Rules out that a message recommends an option that there is not, and that a key gets into a file."""
    cli.write("a.yaml", "models: {default: 'openai:m'}\ntopics: {prompt: Tea}\ntools: {use: [files]}\n")
    assert "--base-url" in cli("generate", "a.yaml", "--dry-run").err
    server = script(lambda body: 401)
    options = ("--model", "m", "--base-url", server.url, "--api-key", "planted-key")
    done = cli("generate", "a.yaml", *options, "--out", "d")
    assert done.code != 0, done
    assert server.headers[0]["authorization"] == "Bearer planted-key"
    for path in (cli.folder / "d").iterdir():
        assert b"planted-key" not in path.read_bytes(), path
    assert "planted-key" not in done.out + done.err
    by_set = cli(
        "generate", "a.yaml", "--model", "m", "--set", f"models.default.base_url={server.url}", "--dry-run"
    )
    assert by_set.code == 0, by_set
    wrong = cli("generate", "a.yaml", "--base-url", "nowhere", "--dry-run")
    assert (wrong.code, "--base-url 'nowhere' is not a URL" in wrong.err) == (2, True)


def test_a_pipe_that_nobody_writes_to_is_no_endless_wait(cli: Cli) -> None:
    """Rules out that a command waits forever for a configuration; one that comes through a pipe is read."""
    os.mkfifo(cli.folder / "pipe")
    with pytest.raises(ConfigError, match="nothing was written to the pipe"):
        read_config_file(cli.folder / "pipe", 0.05)
    writer = Thread(target=lambda: (cli.folder / "pipe").write_text(cli("generate", "--init").out))
    writer.start()
    done = cli("generate", "pipe", "--dry-run")
    writer.join()
    assert (done.code, "files: 9 rows" in done.out) == (0, True), done


def test_the_folder_is_called_path_in_a_file(cli: Cli) -> None:
    cli.write("a.yaml", "topics: {prompt: Tea}\ntools: {use: [files]}\noutput: {out: d}\n")
    assert "output.out: this key is called 'path' now" in cli("generate", "a.yaml", "--dry-run").err


def test_the_message_about_missing_rows_names_a_command_that_works(cli: Cli) -> None:
    cli.write(
        "a.yaml",
        "models: {default: 'mock:teacher'}\ntopics: {prompt: Tea, degree: 1, depth: 1}\n"
        "generation: {max_attempts: 1, conversation: {type: basic}}\n"
        "quality: {filters: {length: {min_words: 900}}}\noutput: {path: none}\n",
    )
    done = cli("generate", "a.yaml")
    assert done.code == 3, done
    assert "`treadle dataset stats none`" in done.err
    assert cli("dataset", "stats", "none").code == 0


def test_the_plan_says_what_a_dataset_has(cli: Cli) -> None:
    cli.write(
        "a.yaml",
        "models: {default: 'mock:teacher'}\ntopics: {prompt: Tea, degree: 3, depth: 1}\n"
        "generation: {conversation: {type: basic}}\noutput: {path: tea}\n",
    )
    assert cli("generate", "a.yaml").code == 0
    done = cli("generate", "a.yaml", "--dry-run")
    assert done.out == "dataset: 'tea' has all rows that are asked for\n", done
    done = cli("generate", "a.yaml", "--num-samples", "5", "--dry-run")
    assert done.out.startswith("dataset: 2 more rows in 'tea', which has 3\n"), done


def test_the_plan_says_how_the_cost_becomes_known(cli: Cli) -> None:
    cli.write("a.yaml", "topics: {prompt: Tea}\ntools: {use: [files]}\n")
    done = cli("generate", "a.yaml", "--dry-run", "--model", "openai:a-model-of-mine")
    assert "give the price of each model, such as models.agent.price" in done.out


def test_unknown_names_are_told_together_with_other_mistakes(cli: Cli) -> None:
    cli.write(
        "a.yaml",
        "topics: {prompt: Tea, depht: 2}\ngeneration: {conversation: {type: basic}}\n"
        "quality: {filters: {lenght: false}}\noutput: {formats: [tlr]}\n",
    )
    done = cli("generate", "a.yaml")
    assert done.code == 2, done
    for text in ("did you mean 'depth'?", "did you mean 'length'?", "did you mean 'trl'?"):
        assert text in done.err


def test_a_file_of_definitions_is_named_as_a_mock(cli: Cli) -> None:
    cli.write("a.yaml", "topics: {prompt: Tea}\ntools: {use: [tools.json]}\n")
    cli.write("tools.json", '{"tools": []}')
    done = cli("generate", "a.yaml", "--model", "mock:teacher")
    assert done.code == 2, done
    assert "write 'mock:tools.json'" in done.err


def test_a_dataset_that_was_begun_goes_on_until_a_limit(cli: Cli) -> None:
    """The estimate stops only a generation that has cost nothing yet."""
    cli.write(
        "a.yaml",
        "models: {default: 'mock:teacher'}\ntopics: {prompt: Tea, degree: 3, depth: 1}\n"
        "generation: {conversation: {type: basic}}\noutput: {path: tea}\n",
    )
    low = ("--num-samples", "400", "--set", "limits.max_tokens=20000")
    done = cli("generate", "a.yaml", *low)
    assert (done.code, "are expected to take" in done.err) == (2, True), done
    assert cli("generate", "a.yaml").code == 0
    done = cli("generate", "a.yaml", *low)
    assert (done.code, "limits.max_tokens is reached" in done.err) == (3, True), done


@pytest.mark.parametrize("name", ["own.py", "own.py:f", "own_module:f"])
def test_a_dry_run_imports_nothing_of_the_tools(cli: Cli, name: str) -> None:
    code = "open('ran', 'w').close()\ndef f(x: str) -> str:\n    'F.'\n    return x\n"
    cli.write("own.py", code)
    cli.write("own_module.py", code)
    text = f"models: {{default: 'mock:teacher'}}\ntopics: {{prompt: x}}\ntools: {{use: [{name}]}}\n"
    cli.write("a.yaml", text)
    assert cli("generate", "a.yaml", "--dry-run").code == 0
    assert not (cli.folder / "ran").exists()
    cli.write("a.yaml", text.replace("own", "absent"))
    done = cli("generate", "a.yaml", "--dry-run")
    assert ("there is no file" in done.err) == ("own.py" in name), done


def test_a_stop_before_the_rows_are_planned_does_not_say_that_nothing_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    again = "treadle generate x.yaml"
    job = JobCommand("x", GenerationProgress(), SampleFeed(), again, ViewOptions(is_quiet=True))
    ends = [
        job.report(JobEnd("stopped"), GenerationProgress(wanted=wanted, kept=wanted), Path("x"), "")
        for wanted in (0, 1)
    ]
    assert ends == [ExitCode.INTERRUPTED] * 2
    told = f"interrupted; go on with: {again}\ninterrupted; nothing is missing\n"
    assert capsys.readouterr().err == told
