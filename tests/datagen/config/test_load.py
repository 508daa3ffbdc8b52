"""A configuration file is read, and all mistakes in it are reported with their lines."""

import json
from pathlib import Path

import pytest

from treadle.core.errors import ConfigError
from treadle.core.texts.documents import read_change
from treadle.datagen.config.loading import load_config
from treadle.models.config.tables import ModelTable

GOOD = """
models: {default: "mock:teacher"}
topics: {prompt: Work with files}
tools: {use: [files]}
"""


def write(folder: Path, text: str, name: str = "config.yaml") -> Path:
    file = folder / name
    file.write_text(text)
    return file


def mistakes_in(folder: Path, text: str) -> list[str]:
    """Return the mistakes that are reported for a file, without its folder."""
    with pytest.raises(ConfigError) as error:
        load_config(write(folder, text))
    lines = str(error.value).replace(f"{folder}/", "").splitlines()
    return lines[1:] if len(lines) > 1 else lines


def test_a_configuration_is_read(tmp_path: Path) -> None:
    loaded = load_config(write(tmp_path, GOOD))
    assert loaded.config.topics.prompt == "Work with files"
    assert loaded.config.models.default == "mock:teacher"
    assert loaded.notes == ()


def test_a_configuration_can_be_json(tmp_path: Path) -> None:
    value = {"topics": {"prompt": "a"}, "tools": {"use": ["files"]}}
    for text in (json.dumps(value), json.dumps(value, indent="\t")):
        assert load_config(write(tmp_path, text, "config.json")).config.topics.prompt == "a"
    with pytest.raises(ConfigError, match=r"config.json:3: topics.promt: .*'prompt'"):
        load_config(write(tmp_path, '{\n"topics": {\n"promt": "a"}}', "config.json"))


def test_all_mistakes_are_reported_together_each_with_its_line_and_the_nearest_key(tmp_path: Path) -> None:
    """Misspelled keys are errors, which the reference system ignored, so that every sample failed later."""
    text = """
nmae: x
models:
  default: openai:gpt-5
  agent: {modle: x, api_key: 12345}
  user: 7
topics:
  promt: "a"
  depth: 99
generation:
  num_samples: 50 percent
  kinds: {chaind: 1, single: -1}
  conversation: {type: agnet}
output:
  num_samples: 7
tools:
  use: [{nme: a}, 3, files]
  max_retries: 3
"""
    found = mistakes_in(tmp_path, text)
    for expected in (
        "config.yaml:2: nmae: there is no such key; did you mean 'name'?",
        "config.yaml:5: models.agent.modle: there is no such key; did you mean 'model'?",
        "config.yaml:5: models.agent.model: it is missing, and it is required",
        "config.yaml:5: models.agent.api_key: keys do not belong in a file",
        "config.yaml:6: models.user: 7 is not possible; give 'provider:name'",
        "config.yaml:8: topics.promt: there is no such key; did you mean 'prompt'?",
        "config.yaml:9: topics.depth: 99 is not possible; it should be less than or equal to 10",
        "config.yaml:11: generation.num_samples: '50 percent' is not possible; give a number from 1, 'auto'",
        "config.yaml:12: generation.kinds.chaind: 'chaind' is unknown; did you mean 'chained'?",
        "config.yaml:12: generation.kinds.single: -1 is not possible",
        "config.yaml:13: generation.conversation.type: 'agnet' is unknown; did you mean 'agent'?",
        "config.yaml:15: output.num_samples: there is no such key; there is such a key in 'generation'",
        "config.yaml:17: tools.use.0.nme: there is no such key; did you mean 'name'?",
        "config.yaml:17: tools.use.0.name: it is missing",
        "config.yaml:17: tools.use.1: 3 is not possible; give the name of a toolset",
        "config.yaml:18: tools.max_retries: there is no such key",
    ):
        assert any(line.startswith(expected) for line in found), expected
    assert len(found) == 16
    assert "12345" not in "".join(found), "a key that was written into the file is not repeated"


def test_a_key_that_is_there_twice_is_a_mistake(tmp_path: Path) -> None:
    text = f"{GOOD}\noutput:\n  path: a\n  path: b\n"
    assert mistakes_in(tmp_path, text) == [
        "config.yaml:8: output.path: the key occurs twice, in lines 7 and 8; delete one"
    ]


def test_a_mistake_in_the_syntax_has_its_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"config.yaml:3: this is not valid YAML"):
        load_config(write(tmp_path, "topics:\n  prompt: a\n bad: [\n"))
    with pytest.raises(ConfigError, match="must hold a mapping"):
        load_config(write(tmp_path, "- a\n"))
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        load_config(tmp_path / "missing.yaml")


def test_keys_that_came_by_an_anchor_have_the_line_of_the_anchor(tmp_path: Path) -> None:
    text = """
base: &base {dept: 3}
topics:
  <<: *base
  prompt: a
tools: {use: [files]}
"""
    assert "config.yaml:2: topics.dept: there is no such key; did you mean 'depth'?" in mistakes_in(
        tmp_path, text
    )


def test_paths_are_relative_to_the_file_and_the_output_to_the_current_folder(tmp_path: Path) -> None:
    text = """
topics: {load: topics.json}
tools:
  use: ["tools.py:search", files, "mock:tools.yaml", {name: ./more.py}]
  files: data
quality: {evaluation_sets: [test.jsonl, /abs/test.jsonl]}
models: {default: {model: "mock:teacher", cache: cache}}
output: {path: out}
"""
    (tmp_path / "tools.yaml").write_text("tools: []")
    config = load_config(write(tmp_path, text)).config
    assert config.topics.load == tmp_path / "topics.json"
    assert config.tools.files == str(tmp_path / "data")
    names = [part.name for part in config.tools.parts()]
    assert names == [
        f"{tmp_path}/tools.py:search",
        "files",
        f"mock:{tmp_path}/tools.yaml",
        f"{tmp_path}/more.py",
    ]
    assert config.quality.evaluation_sets == [tmp_path / "test.jsonl", Path("/abs/test.jsonl")]
    assert not isinstance(config.models.default, str | None)
    assert config.models.default.cache == str(tmp_path / "cache")
    assert config.output.path == Path("out")


AGENT = "topics: {prompt: a}\ntools: {use: [files]}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("topics: {prompt: a}", "1: tools.use: an agent needs tools"),
        ("topics: {}\ntools: {use: [files]}", "1: topics.prompt: it is missing"),
        (
            "topics: {load: t.json, degree: 3}\ntools: {use: [files]}",
            "1: topics.degree: topics that are loaded are not built",
        ),
        (
            AGENT + "generation: {engine: here}",
            "3: generation.engine: this key is called 'workers' now; rename it",
        ),
        (
            AGENT + "generation: {conversation: {type: basic}}",
            "3: generation.conversation.type: conversations of the type 'basic' use no tools",
        ),
        (
            "topics: {prompt: a}\ngeneration: {conversation: {type: cot}}",
            "2: generation.conversation.reasoning: 'cot' needs the form",
        ),
        (
            "topics: {prompt: a}\ngeneration: {conversation: {type: basic, reasoning: agent}}",
            "2: generation.conversation.reasoning: conversations of the type 'basic' have no reasoning",
        ),
        (
            AGENT + "generation: {conversation: {reasoning: freetext}}",
            "3: generation.conversation.reasoning: the reasoning of agents",
        ),
        (
            AGENT + "generation:\n  conversation:\n    min_turns: 3\n    max_turns: 2",
            "5: generation.conversation.min_turns: min_turns is 3 and max_turns is 2",
        ),
        (
            "topics: {prompt: a}\ngeneration:\n  kinds: {chained: 1}\n  conversation: {type: basic}",
            "3: generation.kinds.chained: kinds of tool use need agents",
        ),
        (
            "topics: {prompt: a}\ntools: {use: [files], max_calls: 1}\ngeneration:\n  kinds: {parallel: 1}",
            "4: generation.kinds.parallel: it needs 2 calls, and tools.max_calls allows 1",
        ),
        (
            "topics: {prompt: a}\ntools: {use: [files], max_steps: 2}\ngeneration:\n  kinds: {chained: 1}",
            "4: generation.kinds.chained: it needs 3 steps",
        ),
        (
            "topics: {prompt: a}\ntools: {use: [files], max_steps: 1}",
            "2: tools.max_steps: an agent needs at least 2 steps",
        ),
        (AGENT + "generation: {kinds: {single: 0}}", "3: generation.kinds: all weights are 0"),
        (AGENT + 'generation: {num_samples: "0%"}', "3: generation.num_samples: '0%' gives no sample"),
        (
            AGENT + "output: {formats: [trll]}",
            "3: output.formats.0: unknown format 'trll'; did you mean 'trl'?",
        ),
        (
            AGENT + 'output: {splits: {"a/b": 1}}',
            "3: output.splits.a/b: 'a/b' cannot be a part of a file name",
        ),
        (
            AGENT + "output: {include_system_message: false, system_message: a}",
            "3: output.system_message: the rows have no system message",
        ),
        (
            AGENT + "quality:\n  filters:\n    languge: false",
            "5: quality.filters.languge: there is no filter 'languge'; did you mean 'language'",
        ),
        (
            AGENT + "quality:\n  filters:\n    duplicates: {similarty: 1}",
            "5: quality.filters.duplicates.similarty: the filter 'duplicates' has no setting 'similarty'",
        ),
        (AGENT + 'models: {judge: "mock:teacher"}', "3: models.judge: this model would never be asked"),
    ],
)
def test_combinations_that_cannot_work_are_mistakes(tmp_path: Path, text: str, expected: str) -> None:
    """Nothing is paid for before such a configuration is refused."""
    found = mistakes_in(tmp_path, text)
    assert len(found) == 1
    assert found[0].startswith(f"config.yaml:{expected}"), found


def test_changes_override_the_file_also_with_zero(tmp_path: Path) -> None:
    """The reference system loses a 0 that is given on the command line, because it takes it for nothing."""
    given = ("models.default.temperature=0", "generation.num_samples=5", "limits.max_tokens=0")
    text = GOOD.replace('"mock:teacher"', '{model: "mock:teacher", temperature: 1}')
    config = load_config(write(tmp_path, text), dict(map(read_change, given))).config
    assert isinstance(config.models.default, ModelTable)
    assert config.models.default.temperature == 0
    assert config.models.default.model == "mock:teacher"
    assert config.generation.num_samples == 5
    assert config.limits.max_tokens == 0


def test_mistakes_in_changes_name_the_option(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="KEY=VALUE"):
        read_change("generation.num_samples")
    with pytest.raises(ConfigError) as error:
        load_config(write(tmp_path, GOOD), {"generation.window": 0, "topics.dpeth": 3, "outptu.path": "a"})
    text = str(error.value)
    assert "--set generation.window: 0 is not possible" in text
    assert "--set topics.dpeth: there is no such key; did you mean 'depth'?" in text
    assert "outptu: there is no such key; did you mean 'output'?" in text


@pytest.mark.parametrize(
    "section",
    [
        "generation: {kinds: {single: .inf}}",
        "generation: {difficulties: {easy: .inf, hard: 1}}",
        "generation: {window: 10000000}",
        "topics: {prompt: x, window: 10001}",
        "limits: {max_seconds: .inf}",
        "limits: {max_cost_usd: .nan}",
        "output: {splits: {train: .inf, test: 1}}",
    ],
)
def test_numbers_that_no_generation_can_use_are_mistakes(tmp_path: Path, section: str) -> None:
    """Infinite shares failed at the end, when everything was paid for, and a huge window took all memory."""
    topics = "" if section.startswith("topics") else "topics: {prompt: x}\n"
    file = tmp_path / "config.yaml"
    file.write_text(f"{topics}tools: {{use: [files], files: tasks:files}}\n{section}\n")
    with pytest.raises(ConfigError, match=f"{file}:[0-9]+: {section.partition(':')[0]}"):
        load_config(file)
