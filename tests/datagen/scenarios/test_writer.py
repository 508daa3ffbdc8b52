"""The checks of written scenarios."""

import pytest
from tests.datagen.conversations.cast import spec

from treadle.datagen.scenarios.scenario import Environment, Kind, Scenario, write_facts
from treadle.datagen.scenarios.scenario_writer import find_placeholder, find_scenario_faults
from treadle.sandbox.in_memory import SharedFiles
from treadle.testbed.request_facts import read_facts

FILES = Environment(files={"notes.txt": b"milk", "docs/plan.md": b"# Plan"})


def faults(message: str, kind: Kind = Kind.SINGLE, environment: Environment = FILES, **more) -> str:
    return " ".join(find_scenario_faults(Scenario(message, **more), spec(kind=kind), environment))


@pytest.mark.parametrize(
    "message",
    [
        "What is in notes.txt?",
        "Summarise plan.md in one line.",
        "Please read docs/plan.md. Thanks!",
        "Is version 2.0.1 of node.js older, e.g. than 3.1?",
        "My site is example.com, and I wrote to ana@mail.org.",
        "Wrap it in a <div> and an <h1>.",
    ],
)
def test_scenarios_that_can_be_used(message):
    assert faults(message) == ""


@pytest.mark.parametrize(
    ("message", "fault"),
    [
        ("  ", "empty"),
        ("Read {{file}}.", "'{{file}}' is a placeholder"),
        ("Read <your file>.", "placeholder"),
        ("Mail it to [your name].", "placeholder"),
        ("Open path/to/file.", "placeholder"),
        ("Read budget.csv.", "no file 'budget.csv'"),
        ("Compare notes.txt and other/notes.txt.", "no file 'other/notes.txt'"),
    ],
)
def test_scenarios_that_cannot_be_used(message, fault):
    assert fault in faults(message)


@pytest.mark.parametrize(
    "message", ["What is in Maße 211.csv?", "Read my docs/Plan B.md.", "Read Plan B.md."]
)
def test_names_of_files_may_have_spaces(message):
    files = SharedFiles({"Maße 211.csv": "a", "my docs/Plan B.md": "b"})
    environment = Environment(files=files)
    assert faults(message, environment=environment) == ""
    assert "no file '212.csv'" in faults("Read Maße 212.csv.", environment=environment)


def test_files_that_are_to_be_made_may_be_named():
    assert faults("Write the sum to report.csv.") != ""
    assert faults("Write the sum to report.csv.", new_files=["report.csv"]) == ""


def test_the_files_of_a_task_may_be_named():
    environment = Environment(
        files=FILES.files, task="files:x", task_input="Write it to out/sum.txt, please."
    )
    assert faults("Please write it to out/sum.txt.", environment=environment) == ""


@pytest.mark.parametrize("kind", [Kind.RECOVERY, Kind.REFUSAL])
def test_kinds_that_may_name_missing_files(kind):
    assert faults("Read nots.txt.", kind) == ""


def test_a_fact_that_has_to_be_asked_for_is_not_told():
    kind = Kind.MISSING_PARAMETER
    assert "withheld` is empty" in faults("Read my file.", kind)
    assert "already tells" in faults("Read my file, it is notes.txt.", kind, withheld="it is notes.txt")
    assert faults("Read my file.", kind, withheld="It is notes.txt.") == ""


def test_without_files_every_name_is_allowed():
    assert faults("Read budget.csv.", environment=Environment()) == ""


@pytest.mark.parametrize(
    "text", ["a < b and c > d", "[1, 2]", "{a: 1}", "list[str]", "[name](https://a.org)" * 0]
)
def test_no_placeholders(text):
    assert find_placeholder(text) is None


@pytest.mark.parametrize("text", ["</facts>", 'a "quote"', "line\nline\n</facts>\n", "ä 日本"])
def test_facts_are_read_as_they_were_written(text):
    assert read_facts(f"before\n{write_facts({'x': [text]})}\nafter") == {"x": [text]}


@pytest.mark.parametrize(
    "text", ["no facts", "<facts>\n{", "<facts>\n[1]\n</facts>", "<facts>\n{x}\n</facts>"]
)
def test_texts_without_facts(text):
    assert read_facts(text) is None
