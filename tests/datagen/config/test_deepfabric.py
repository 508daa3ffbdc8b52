"""Configuration files of DeepFabric are read as they are, with a note for each key."""

from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.loop.workbench import make_call

from treadle.core.errors import ConfigError
from treadle.core.types import Role
from treadle.datagen.config.deepfabric_config import _KEYS
from treadle.datagen.config.estimate import wanted_rows
from treadle.datagen.config.loading import LoadedConfig, check_plan, load_config
from treadle.datagen.config.roles import make_models
from treadle.datagen.conversations.make import make_sample
from treadle.datagen.conversations.studio import Studio
from treadle.datagen.quality.registry import read_settings
from treadle.datagen.scenarios.environment import open_environments
from treadle.datagen.scenarios.scenario import Difficulty, Kind, SampleSpec, UserPersona
from treadle.jobs.foreign_keys import known_keys
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.models.config.tables import ModelTable
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.protocol import Tool
from treadle.tools.resolve import resolve_tools
from treadle.tools.spin import Spin

FULL = """
llm:
  provider: openai
  model: gpt-4o
  temperature: 0.7

topics:
  prompt: Keeping a small library of recipes
  mode: graph
  system_prompt: Think of home cooks.
  depth: 2
  degree: 3
  max_concurrent: 6
  max_tokens: 900
  save_as: topics.jsonl
  llm:
    model: gpt-4o-mini

generation:
  system_prompt: Write about recipes.
  instructions: Vary the cuisines.
  conversation:
    type: chain_of_thought
    reasoning_style: structured
    agent_mode: multi_turn
    min_tool_calls: 2
  tools:
    spin_endpoint: http://localhost:3000
    tools_endpoint: http://localhost:3000/mock/list-tools
    components:
      builtin: [read_file, list_files]
      mock: [convert_units]
    max_per_query: 4
    strict: false
    max_agent_steps: 5
    scenario_seed:
      files: {"soup.md": "# Soup"}
      clock: noon
  max_retries: 3
  sample_retries: 2
  max_tokens: 2000
  rate_limit: {max_retries: 7, base_delay: 2}
  llm: {temperature: 0}

output:
  system_prompt: You help home cooks.
  include_system_message: true
  num_samples: 50%
  batch_size: 8
  save_as: out/recipes.jsonl
  checkpoint: {interval: 10, retry_failed: true}
  formatters:
    - {name: a, template: "builtin://trl_sft_tools"}
    - {name: b, template: "builtin://harmony"}

evaluation: {conversation_type: cot, reasoning_style: agent}
huggingface: {repository: me/recipes, tags: [food]}
kaggle: {handle: me/recipes, version_notes: first}
"""


def load(folder: Path, text: str) -> LoadedConfig:
    file = folder / "config.yaml"
    file.write_text(text)
    return load_config(file)


def notes_of(loaded: LoadedConfig) -> list[str]:
    return [note.replace(f"{Path(loaded.document.path).parent}/", "") for note in loaded.notes]


def small(**changes: Any) -> str:
    """Return a small configuration of DeepFabric, with changed sections."""
    value: dict[str, Any] = {
        "topics": {"prompt": "Tea", "mode": "tree", "depth": 1, "degree": 2},
        "generation": {"system_prompt": "Write."},
        "output": {"save_as": "tea.jsonl"},
    }
    for section, keys in changes.items():
        value[section] = value.get(section, {}) | keys
    return yaml.safe_dump(value, sort_keys=False)


def test_all_sections_are_mapped(tmp_path: Path) -> None:
    config = load(tmp_path, FULL).config
    assert config.models.default == ModelTable(
        model="openai:gpt-4o", temperature=0, max_output_tokens=2000, max_attempts=8
    ), "a temperature of 0 is one"
    assert config.models.topics == ModelTable(
        model="openai:gpt-4o-mini", temperature=0.7, max_output_tokens=900, max_attempts=8
    )
    topics = config.topics
    assert (topics.mode, topics.depth, topics.degree, topics.window) == ("graph", 2, 3, 6)
    assert topics.instructions == "Think of home cooks."
    generation = config.generation
    assert generation.instructions == "You help home cooks."
    assert generation.guidance == "Write about recipes.\n\nVary the cuisines."
    assert generation.num_samples == "50%"
    assert (generation.window, generation.sample_attempts) == (8, 3)
    conversation = generation.conversation
    assert (conversation.type, conversation.reasoning) == ("agent", "agent")
    assert (conversation.min_turns, conversation.max_turns) == (2, 4)
    tools = config.tools
    assert tools.files == {"soup.md": "# Soup"}
    assert (tools.max_calls, tools.max_steps) == (4, 6)
    vfs, mock = tools.parts()
    assert (vfs.name, vfs.settings) == ("vfs", {"names": ["read_file", "list_files"]})
    assert mock.name == "spin"
    assert mock.settings == {
        "endpoint": "http://localhost:3000",
        "component": "mock",
        "names": ["convert_units"],
        "tools_endpoint": "http://localhost:3000/mock/list-tools",
    }
    assert config.output.path == Path("out/recipes")
    assert config.name == "recipes"
    assert config.output.formats == ["deepfabric", "trl"]
    assert config.publish.huggingface is not None
    assert config.publish.huggingface.repository == "me/recipes"
    assert config.publish.kaggle is not None
    assert config.publish.kaggle.version_notes == "first"


def test_each_key_that_is_mapped_or_left_out_has_a_note_with_its_line(tmp_path: Path) -> None:
    notes = "\n".join(notes_of(load(tmp_path, FULL)))
    for expected in (
        "config.yaml:15: topics.save_as: left out; the topics are in topics.json",
        "config.yaml:23: generation.conversation.type: 'chain_of_thought' is 'cot' here",
        "config.yaml:24: generation.conversation.reasoning_style: 'structured' is 'agent' here",
        "config.yaml:26: generation.conversation.min_tool_calls: left out; say with generation.kinds",
        "config.yaml:34: generation.tools.strict: left out; no sample is discarded",
        "config.yaml:38: generation.tools.scenario_seed.clock: left out; only files can be given",
        "config.yaml:42: generation.rate_limit: left out; retries wait as long as the server says",
        "config.yaml:48: output.num_samples: it is generation.num_samples here; it is the number of rows",
        "config.yaml:49: output.batch_size: it is generation.window here",
        "config.yaml:51: output.checkpoint: left out; every row is stored",
        "config.yaml:52: output.formatters: 'trl_sft_tools' is the format 'trl' here",
        "config.yaml:52: output.formatters: 'harmony' is left out",
        "config.yaml:56: evaluation: left out",
    ):
        assert expected in notes, expected


README = """\
llm:
  provider: "openai"
  model: "gpt-4o"
topics:
  prompt: "Small web services"
  mode: tree
  depth: 2
  degree: 2
generation:
  system_prompt: Write about services.
  conversation: {type: chain_of_thought, reasoning_style: agent, agent_mode: single_turn}
  tools:
    spin_endpoint: "http://localhost:3000"
    available: [read_file, write_file, list_files]
    max_per_query: 3
    max_retries: 3
    sample_retries: 2
    max_tokens: 2000
output:
  num_samples: 4
  save_as: "services.jsonl"

 Optional: Upload to Hugging Face
 huggingface:
   repository: "me/services"
"""


async def test_the_tools_of_the_readme_are_there_although_it_names_them_by_an_unknown_key(
    tmp_path: Path,
) -> None:
    """The reference system ignores `tools.available` of its own README, has no tools, and every sample fails."""
    loaded = load(tmp_path, README)
    assert [tool.spec.name for tool in resolve_tools(loaded.config.tools.parts())] == [
        "read_file",
        "write_file",
        "list_files",
    ]
    assert loaded.config.generation.sample_attempts == 3
    assert isinstance(loaded.config.models.default, ModelTable)
    assert loaded.config.models.default.max_output_tokens == 2000
    notes = notes_of(loaded)
    assert any("generation.tools.max_tokens: DeepFabric ignores it there" in note for note in notes)


def test_sections_with_a_stray_indentation_at_the_end_are_read_with_a_note(tmp_path: Path) -> None:
    """The newest README of the reference system ends with sections that are indented by one space."""
    loaded = load(tmp_path, README)
    assert loaded.config.publish.huggingface is not None
    assert loaded.config.publish.huggingface.repository == "me/services"
    notes = notes_of(loaded)
    assert any(note.startswith("config.yaml:23: the indentation from here on") for note in notes)
    assert any(note.startswith("renamed: config.yaml:23: Optional: left out") for note in notes)


@pytest.mark.parametrize("given", [True, ["read_file", "write_file", "list_files", "delete_file"]])
def test_a_component_may_be_a_flag(tmp_path: Path, given: object) -> None:
    tools = {"components": {"builtin": given, "github": False}}
    found = load(tmp_path, small(generation={"tools": tools})).config.tools
    names = [item.spec.name for item in resolve_tools(found.parts())]
    assert names == ["read_file", "write_file", "list_files", "delete_file"]
    assert len(found.use) == 1


async def test_the_builtin_tools_have_deepfabrics_names_schemas_and_results(tmp_path: Path) -> None:
    """They run in the sandbox of the sample, so no session of a service is left behind."""
    text = small(generation={"tools": {"components": {"builtin": []}, "scenario_seed": {"files": {"a": ""}}}})
    config = load(tmp_path, text).config
    tools = {tool.spec.name: tool for tool in resolve_tools(config.tools.parts())}
    assert [*tools] == ["read_file", "write_file", "list_files", "delete_file"]
    for name, keys in (
        ("read_file", ["file_path"]),
        ("write_file", ["file_path", "content"]),
        ("list_files", []),
    ):
        schema: Any = tools[name].spec.parameters
        assert [*schema["properties"]] == keys
        assert schema.get("required", []) == keys
    sandbox = MemorySandbox({"a": b""})
    assert await ask(tools["read_file"], sandbox, file_path="a") == "", "an empty file can be read"
    said = await ask(tools["write_file"], sandbox, file_path="b", content="two")
    assert said == "Successfully wrote 3 bytes to b"
    assert await ask(tools["list_files"], sandbox) == '["a","b"]'
    assert await ask(tools["delete_file"], sandbox, file_path="a") == "Successfully deleted a"


async def test_a_sample_of_a_deepfabric_file_is_made_with_its_tools(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its questions are about the files that it seeds, which the reference system hides from the writer."""
    monkeypatch.chdir(tmp_path)
    files = {"menu.md": "# Menu\n", "stock.csv": "tea,count\nassam,4\n"}
    tools = {"spin_endpoint": "http://localhost:1", "scenario_seed": {"files": files}}
    conversation = {"type": "cot", "reasoning_style": "agent"}
    llm = {"provider": "mock", "model": "teacher"}
    loaded = load(tmp_path, small(llm=llm, generation={"tools": tools, "conversation": conversation}))
    check_plan(loaded)
    config = loaded.config
    studio = Studio(config, make_models(config), MemoryJournal(), open_environments(config.tools, 0))
    spec = SampleSpec(
        number=1,
        topic_id="t",
        topic=("Tea", "Assam"),
        kind=Kind.CHAINED,
        difficulty=Difficulty.EASY,
        persona=UserPersona(name="Ada", role="cook", style="brief", expertise="novice"),
        turns=1,
        seed=3,
    )
    made = await make_sample(studio, spec, 1, [])
    assert made.error is None
    assert made.row is not None
    results = [message.content for message in made.row.messages if message.role is Role.TOOL]
    assert results
    assert all(result in ('["menu.md","stock.csv"]', *files.values()) for result in results)


async def ask(tool: Tool, sandbox: MemorySandbox, **arguments: Any) -> str:
    name = tool.spec.name
    result = await make_call(call(name, arguments, call_id="c"), {name: tool}, sandbox)
    assert not result.is_error
    return result.content


def test_custom_tools_are_simulated_or_run_by_the_service(tmp_path: Path) -> None:
    custom = [
        {
            "name": "find_tea",
            "description": "Finds.",
            "parameters": [{"name": "kind", "type": "str"}],
            "returns": "a",
        }
    ]
    config = load(tmp_path, small(generation={"tools": {"custom": custom}})).config
    assert config.tools.definitions == custom
    assert config.tools.parts() == ()
    tools = {"custom": custom, "spin_endpoint": "http://localhost:1", "tool_execute_path": "/call"}
    config = load(tmp_path, small(generation={"tools": tools})).config
    (part,) = config.tools.parts()
    assert part.settings is not None
    made = Spin(**part.settings)  # type: ignore[arg-type]
    assert [tool.spec.name for tool in made.tools()] == ["find_tea"]
    assert made.execute_path == "/call"


@pytest.mark.parametrize(
    ("style", "mode"), [("default", "graph"), ("isolated", "tree"), ("anchored", "tree"), (None, "graph")]
)
def test_the_style_of_graphs_decides_whether_topics_have_connections(
    tmp_path: Path, style: str | None, mode: str
) -> None:
    topics = {"mode": "graph"} | ({"prompt_style": style} if style else {})
    assert load(tmp_path, small(topics=topics)).config.topics.mode == mode


def test_defaults_are_deepfabrics(tmp_path: Path) -> None:
    text = "topics: {prompt: Tea}\ngeneration: {system_prompt: Write.}\noutput: {save_as: tea.jsonl}\n"
    loaded = load(tmp_path, text)
    config = loaded.config
    assert (config.topics.mode, config.topics.depth, config.topics.degree) == ("graph", 3, 10)
    assert config.models.default == ModelTable(model="openai:gpt-4o", temperature=0.2)
    assert config.generation.conversation.type == "basic"
    assert config.generation.instructions == "Write."
    assert config.generation.num_samples == 3, "one sample for each of 1,000 topics would be expensive"
    assert len([note for note in loaded.notes if "DeepFabric's default" in note]) == 6


def test_the_address_of_an_openai_server_is_used(tmp_path: Path) -> None:
    """The reference system drops `base_url` for the provider openai, so its users had to call servers `ollama`."""
    llm = {"provider": "openai", "model": "m", "base_url": "http://localhost:8000/v1"}
    table = load(tmp_path, small(llm=llm)).config.models.default
    assert isinstance(table, ModelTable)
    assert table.base_url == "http://localhost:8000/v1"
    table = load(tmp_path, small(llm=llm | {"provider": "ollama"})).config.models.default
    assert isinstance(table, ModelTable)
    assert (table.model, table.base_url, table.api_key_env) == ("openai:m", "http://localhost:8000/v1", "")


def test_rows_of_an_own_schema(tmp_path: Path) -> None:
    schema = {"type": "object", "properties": {"tea": {"type": "string"}}}
    text = small(generation={"output_schema": schema}, output={"format": "custom", "num_samples": "auto"})
    config = load(tmp_path, text).config
    assert config.generation.conversation.output_schema == schema
    assert config.output.formats == ["custom"]
    assert config.generation.num_samples == "auto"


def mistakes_in(folder: Path, text: str) -> str:
    with pytest.raises(ConfigError) as error:
        load(folder, text)
    return str(error.value).replace(f"{folder}/", "")


def test_mistakes_have_the_lines_and_keys_of_the_file(tmp_path: Path) -> None:
    """Misspelled keys are errors, which the reference system ignores."""
    text = """\
topics:
  prompt: Tea
  dept: 2
  degree: 700
generation:
  system_prompt: Write.
  mood: happy
  conversation: {type: cot}
  tools:
    components: {builtin: [read_fil], github: [gh_find]}
output:
  save_as: a.jsonl
  num_samples: many
"""
    found = mistakes_in(tmp_path, text)
    for expected in (
        "config.yaml:3: topics.dept: DeepFabric has no such key; did you mean 'depth'?",
        "config.yaml:4: topics.degree: 700 is not possible; it should be less than or equal to 50",
        "config.yaml:10: generation.tools.components.builtin: there is no built-in tool 'read_fil'; did you mean",
        "config.yaml:10: generation.tools.components.github: its tools run on a service",
        "config.yaml:13: output.num_samples: 'many' is not possible; give a number from 1, 'auto'",
    ):
        assert expected in found, found


def test_tools_that_are_not_built_in_are_left_out_with_a_note(tmp_path: Path) -> None:
    """The examples of DeepFabric name tools of a service, of which it takes those that the service offers."""
    tools = {"spin_endpoint": "http://localhost:3000", "available": ["list_issues", "read_file"]}
    loaded = load(tmp_path, small(generation={"tools": tools}))
    (part,) = loaded.config.tools.parts()
    assert part.settings == {"names": ["read_file"]}
    assert any("changes results" in note and "left out: list_issues;" in note for note in loaded.notes)
    tools["available"] = ["list_issues"]
    assert "none of these tools is built in" in mistakes_in(tmp_path, small(generation={"tools": tools}))


def test_the_rows_have_exactly_the_system_message_of_the_file(tmp_path: Path) -> None:
    """Rules out that Treadle's own paragraphs, which the agent gets too, are in the rows."""
    tools = {"available": ["read_file"]}
    for output in ({}, {"system_prompt": "Help."}):
        config = load(tmp_path, small(generation={"tools": tools}, output=output)).config
        assert (
            config.output.system_message
            == config.generation.instructions
            == output.get("system_prompt", "Write.")
        )
    shown = {"include_system_message": False, "system_prompt": "Help."}
    assert (
        load(tmp_path, small(generation={"tools": tools}, output=shown)).config.output.system_message is None
    )


def test_a_style_of_reasoning_does_not_reject_rows(tmp_path: Path) -> None:
    """Rules out that a model which makes calls without a text gives no rows: DeepFabric keeps such rows."""
    conversation = {"type": "chain_of_thought", "reasoning_style": "agent", "agent_mode": "single_turn"}
    loaded = load(
        tmp_path, small(generation={"conversation": conversation, "tools": {"available": ["read_file"]}})
    )
    assert loaded.config.generation.conversation.reasoning == "agent"
    assert "reasoning" not in read_settings(loaded.config)


def test_notes_about_results_come_before_those_about_names(tmp_path: Path) -> None:
    classes = [note.partition(":")[0] for note in notes_of(load(tmp_path, FULL))]
    assert set(classes) == {"changes results", "renamed"}
    assert classes == sorted(classes)


@pytest.mark.parametrize("wrong", [True, 1, "x", [1], {"a": 1}, [{"a": [1]}], None], ids=repr)
def test_values_of_a_wrong_type_are_mistakes_and_no_tracebacks(tmp_path: Path, wrong: Any) -> None:
    """Try a value in the place of each key and of each section."""
    known = {*known_keys(_KEYS), "generation.tools.components.builtin", "generation.tools.components.github"}
    for key in sorted(known | {key.rpartition(".")[0] for key in known} - {""}):
        value = yaml.safe_load(small(generation={"tools": {"available": ["read_file"]}}))
        *sections, last = key.split(".")
        table = value
        for name in sections:
            table = table.setdefault(name, {})
        table[last] = wrong
        with suppress(ConfigError):
            load(tmp_path, yaml.safe_dump(value))


def test_chain_of_thought_without_a_style_is_a_mistake(tmp_path: Path) -> None:
    found = mistakes_in(tmp_path, small(generation={"conversation": {"type": "cot"}}))
    assert "generation.conversation.reasoning" in found
    assert "'freetext' or 'agent'" in found


def test_a_file_from_before_version_4_is_refused_with_the_new_names(tmp_path: Path) -> None:
    found = mistakes_in(
        tmp_path, "dataset_system_prompt: a\ntopic_tree: {topic_prompt: Tea}\ndata_engine: {}\n"
    )
    assert "from before DeepFabric 4" in found
    assert "config.yaml:2: topic_tree is now topics with mode: tree; topic_prompt is prompt" in found
    assert "config.yaml:3: data_engine is now generation" in found


def test_the_number_of_samples_is_the_number_of_rows(tmp_path: Path) -> None:
    """The reference system multiplied it by the size of a batch: 4 samples in batches of 3 were 12."""
    loaded = load(tmp_path, small(output={"num_samples": 4, "batch_size": 3}))
    assert wanted_rows(loaded.config, leaves=2) == 4
    assert any("which DeepFabric before 4.10 multiplied by batch_size" in note for note in loaded.notes)


def test_a_change_of_a_key_that_only_the_file_has_names_those_of_treadle(tmp_path: Path) -> None:
    file = tmp_path / "deepfabric.yaml"
    file.write_text(FULL)
    for key, own in (
        ("llm.model", "known are name, seed, models, "),
        ("topics.llm.model", "change 'models.topics'"),
        ("output.num_samples", "change 'generation.num_samples'"),
    ):
        with pytest.raises(
            ConfigError, match=f"--set {key}: only the file has this key; of Treadle's keys, {own}"
        ):
            load_config(file, {key: "mock:teacher"})
    assert load_config(file, {"models.default.model": "mock:teacher"}).config.models.default is not None
