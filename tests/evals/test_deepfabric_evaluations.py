"""Configurations of DeepFabric's evaluations are read as they are, with a note for each key."""

import json
from contextlib import suppress
from pathlib import Path

import pytest
import yaml

from treadle.core.errors import ConfigError
from treadle.evals.deepfabric_evaluations import _KEYS
from treadle.evals.evaluation_config import READER
from treadle.jobs.foreign_keys import known_keys

FULL = """
dataset_path: eval.jsonl
output_path: results/first.json
inference_config:
  model: gpt-5-mini
  backend: llm
  provider: openai
  api_key: sk-secret
  base_url: http://localhost:1/v1
  rate_limit_config: {max_retries: 3}
  temperature: 0
  max_tokens: 100
  batch_size: 4
batch_size: 2
max_samples: 50
save_predictions: true
metric_weights: {tool_selection: 0.5, parameter_accuracy: 0.5}
evaluators: {tool_calling: {}}
reporters: {file: {}, cloud: {}}
cloud_api_key: df-secret
multi_turn: false
max_turns: 4
"""
SECTION = """
llm: {provider: openai, model: gpt-4o}
topics: {prompt: files}
generation: {system_prompt: You help.}
output: {save_as: rows.jsonl}
evaluation:
  conversation_type: cot
  reasoning_style: agent
  metrics: [tool_selection_accuracy, parameter_accuracy]
  thresholds: {tool_selection_accuracy: 0.8}
  output_dir: checked
  output_formats: [json, html, csv]
  generate_charts: true
  batch_size: 8
  max_samples: 10
"""


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", "none")


def read(tmp_path, text, changes=None):
    path = tmp_path / "eval.yaml"
    path.write_text(text)
    notes = []
    config = READER.load(path, changes, tell=notes.append)
    return config, [note.replace(f"{path}:", "") for note in notes]


def test_the_content_of_an_evaluator_config(tmp_path):
    config, notes = read(tmp_path, FULL)
    (model,) = config.models
    assert model.model_dump(exclude_defaults=True) == {
        "model": "openai:gpt-5-mini", "base_url": "http://localhost:1/v1", "temperature": 0, "top_p": 0.9,
        "max_output_tokens": 100,
    }  # fmt: skip
    assert (config.rows, config.path, config.reports) == (
        ["eval.jsonl"], Path("results/first"), ["deepfabric=results/first.json"],
    )  # fmt: skip
    assert (config.window, config.max_tasks) == (4, 50)
    weights = {spec.name: (spec.scorer, spec.weight, spec.settings) for spec in config.scorers()}
    legacy = {"definition": "deepfabric"}
    assert weights == {
        "tool_selection_accuracy": ("tool_selection_accuracy", 0.5, {}),
        "parameter_accuracy": ("parameter_accuracy", 0.5, {}),
        "execution_success_rate": ("execution_success_rate", 0, {}),
        "response_quality": ("response_quality", 0, {}),
        "deepfabric_tool_selection_accuracy": ("tool_selection_accuracy", 0, legacy),
        "deepfabric_parameter_accuracy": ("parameter_accuracy", 0, legacy),
        "deepfabric_execution_success_rate": ("execution_success_rate", 0, legacy),
    }
    told = "\n".join(notes)
    assert "secret" not in told
    named = {note.split(": ")[2] for note in notes}
    assert named >= {
        "dataset_path", "max_samples", "metric_weights", "max_turns", "cloud_api_key", "reporters",
        "inference_config.api_key", "inference_config.rate_limit_config", "inference_config.batch_size",
    }  # fmt: skip
    changes = {note.split(": ")[2] for note in notes if note.startswith("changes results")}
    assert changes == {"dataset_path", "max_samples", "metric_weights"}


def test_with_multi_turn_a_sample_is_a_whole_conversation(tmp_path):
    said = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "hello"}]
    (tmp_path / "eval.jsonl").write_text(json.dumps({"messages": said}))
    text = FULL.replace("multi_turn: false", "multi_turn: true").replace(
        ": eval.jsonl", f": {tmp_path}/eval.jsonl"
    )
    config, notes = read(tmp_path, text)
    assert (config.tasks, config.rows) == ([f"conversations:{tmp_path}/eval.jsonl"], [])
    assert (config.agent.max_steps, config.max_tasks) == (4, 50)
    legacy = {
        spec.name: spec.scorer for spec in config.scorers() if spec.settings == {"definition": "deepfabric"}
    }
    assert legacy["deepfabric_response_quality"] == "response_quality"
    assert len(legacy) == 4
    assert any("max_turns: it is agent.max_steps here" in note for note in notes)
    config, notes = read(tmp_path, text.replace("max_turns: 4", ""))
    assert config.agent.max_steps == 10
    assert any("DeepFabric's default is 10" in note for note in notes)
    with pytest.raises(ConfigError, match="multi_turn: it is 'yes'; give true or false"):
        read(tmp_path, text.replace("multi_turn: true", "multi_turn: 'yes'"))


def test_the_section_of_a_generation(tmp_path):
    config, notes = read(tmp_path, SECTION, {"models": ["mock:echo"]})
    assert (config.rows, config.path) == (["rows.jsonl"], Path("checked"))
    assert config.reports == [f"{form}=checked/report.{form}" for form in ("json", "html", "csv")]
    assert (config.window, config.max_tasks) == (8, 10)
    counted = {spec.name: spec.weight for spec in config.scorers() if spec.weight}
    assert counted == {"tool_selection_accuracy": 0.4, "parameter_accuracy": 0.35}
    assert any("thresholds: left out; DeepFabric has no code that reads it" in note for note in notes)
    with pytest.raises(ConfigError, match="models"):
        read(tmp_path, SECTION)


@pytest.mark.parametrize(
    ("given", "name", "options"),
    [
        ({"model": "m", "backend": "ollama", "device": "cuda"}, "ollama:m", {}),
        ({"model": "m", "backend": "llm", "provider": "anthropic"}, "anthropic:m", {}),
    ],
)
def test_each_backend_is_a_provider(tmp_path, monkeypatch, given, name, options):
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    config, _ = read(tmp_path, yaml.safe_dump({"dataset_path": "x.jsonl", "inference_config": given}))
    (model,) = config.models
    assert (model.model, model.options) == (name, options)
    assert (model.temperature, model.top_p, model.max_output_tokens) == (0.7, 0.9, 2048)


def test_weights_that_deepfabric_does_not_know_do_not_make_the_score_zero(tmp_path):
    """DeepFabric's own command gives these, so that its overall score is 0 for every model."""
    weights = {"accuracy": 1.0, "exact_match": 1.0, "f1_score": 0.5}
    given = {"dataset_path": "x.jsonl", "model": "mock:echo", "metric_weights": weights}
    config, notes = read(tmp_path, yaml.safe_dump(given), {"models": ["mock:echo"]})
    counted = {spec.name: spec.weight for spec in config.scorers() if spec.weight}
    assert counted == {
        "tool_selection_accuracy": 0.4, "parameter_accuracy": 0.35, "execution_success_rate": 0.25,
    }  # fmt: skip
    assert any("left out: accuracy, exact_match, f1_score" in note for note in notes)
    assert any("overall score is 0" in note for note in notes)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ({"evaluators": ["tool_caling"]}, "no evaluator 'tool_caling'; did you mean 'tool_calling'"),
        ({"reporters": ["html"]}, "no reporter 'html'; its reporters are file and cloud"),
        ({"max_sample": 3}, "no such key; did you mean 'max_samples'"),
        ({"inference_config": {"model": "x", "backend": "vllm"}}, "give 'transformers', 'ollama', or 'llm'"),
        ({"evaluation": {"metrics": ["accuracy"]}}, "there is no metric 'accuracy'"),
        ({"evaluation": {"metrics": []}}, r"evaluation.metrics: it is \[\]; list one or more of tool_sel"),
        ({"evaluation": {"metrics": "all"}}, "evaluation.metrics: it is 'all'; list one or more of"),
        (
            {"evaluation": {"output_formats": ["jsn"]}},
            "evaluation.output_formats: there is no format 'jsn'; did",
        ),
        ({"evaluators": "tool_caling"}, "no evaluator 'tool_caling'; did you mean 'tool_calling'"),
        (
            {"metric_weights": ["tool_selection"]},
            "metric_weights: it is .*; write the weights as NAME: NUMBER",
        ),
        ({"batch_size": 0}, "batch_size: 0 is not possible"),
    ],
)
def test_mistakes_are_told_with_their_line(tmp_path, more, text):
    with pytest.raises(ConfigError, match=rf"eval.yaml:\d+: .*{text}"):
        read(tmp_path, yaml.safe_dump({"dataset_path": "x.jsonl", **more}), {"models": ["mock:echo"]})


@pytest.mark.parametrize("wrong", ["text", 3, True, [], {}, [3], {"a": [None]}, -1.5, [{"a": 1}], None])
def test_values_of_a_wrong_type_are_mistakes_and_no_tracebacks(tmp_path, wrong):
    """Try a value in the place of each key and of each section."""
    known = known_keys(_KEYS)
    for key in sorted(known | {key.rpartition(".")[0] for key in known} - {""}):
        value = yaml.safe_load(FULL)
        *sections, last = key.split(".")
        table = value
        for name in sections:
            table = table.setdefault(name, {})
            table = table if isinstance(table, dict) else {}
        table[last] = wrong
        with suppress(ConfigError):
            read(tmp_path, yaml.safe_dump(value))


def test_a_second_model_is_told_and_not_lost(tmp_path):
    text = {
        "dataset_path": "x.jsonl",
        "model": "m",
        "inference_config": {"model": "other", "backend": "ollama"},
    }
    _, notes = read(tmp_path, yaml.safe_dump(text))
    assert any("inference_config.model: left out; the model is 'm'" in note for note in notes)


def test_a_configuration_of_treadle_is_not_translated(tmp_path):
    _, notes = read(tmp_path, "models: [oracle]\ntasks: ['files:test']\n")
    assert notes == []


@pytest.mark.parametrize(
    ("report", "text"),
    [("jsn=x", "there is no report 'jsn'; did you mean 'json'"), ("csv", "needs a file: csv=FILE")],
)
def test_reports_are_checked_before_the_work(report, text):
    with pytest.raises(ConfigError, match=text):
        READER.load(None, {"models": ["oracle"], "tasks": ["files:test"], "reports": [report]})
