"""The trained classifiers belong to the data in the repository, and their sums are exact."""

import random

import msgspec
import pytest
from benchmarks import judging
from benchmarks.judging import TOOLS

from treadle.core.policy import Policy
from treadle.core.types import ToolSpec
from treadle.routing.judging import MessageFacts, find_refusal, judge_message, write_hint
from treadle.routing.judging.classifier import Header, LinearClassifier, Threshold, classifier, pack_rows
from treadle.routing.judging.clauses import read
from treadle.routing.judging.features import ROWS, find_features, rows_of_words

np = pytest.importorskip("numpy")
train_judging = pytest.importorskip("benchmarks.train_judging", reason="needs numpy")


def test_the_weights_were_trained_on_the_data_in_the_repository():
    """Fails if the data changed: run `python -m benchmarks.train_judging`."""
    for name in ("messages", "answers"):
        header = classifier(name).header
        assert header.trained_on == train_judging.digest()
        assert header.heads == {head: [*map(str, names)] for head, names in train_judging.HEADS[name].items()}


def test_the_labels_of_the_data_are_known():
    heads = train_judging.HEADS["messages"]
    for role in ("user", "assistant"):
        for item in train_judging.load_examples(role):
            assert item.text.strip()
            assert {item.ambiguity} <= {None, *heads["ambiguity"]}
            assert {item.missing} <= {None, *heads["missing"]}
            assert set(item.task) <= set(heads["task"])
            assert {item.about} <= {None, *train_judging.SUBJECTS}
            assert set(item.refuses) <= set(train_judging.ANSWERS)


def test_no_message_of_the_tests_is_in_the_training_data():
    seen = {
        (item.text.lower(), item.has_history) for item in train_judging.load_examples("user") if item.part
    }
    held = [item for item in judging.load_held_out() if not judging.is_read(item)]
    held = [item for item in held if len(item.text.split()) > 5]
    assert sum((item.text.lower(), item.has_history) in seen for item in held) == 0


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 3000])
def test_the_sums_of_rows_are_exact(count):
    """Rules out that numbers of a row run over into their neighbours."""
    rng = random.Random(count)
    rows = [[rng.choice((-127, 127, 0, 5)) for _ in range(3)] for _ in range(ROWS // 64)]
    rows += [[0, 0, 0]] * (ROWS - len(rows))
    header = Header(
        {"a": ["a"], "b": ["none", "b"]}, {"a": Threshold(1, 0, 0.5)}, 1.0, 1.0, [0.0, 1.0, 2.0], "x"
    )
    made = LinearClassifier(msgspec.json.encode(header) + b"\n" + pack_rows(rows))
    chosen = [rng.randrange(ROWS) for _ in range(count)]
    scores = made.score(chosen, ())
    for place, (head, name) in enumerate((("a", "a"), ("b", "none"), ("b", "b"))):
        wanted = sum(rows[row][place] for row in chosen) / max(1, count) ** 0.5 + place
        assert scores[head, name] == pytest.approx(wanted)


def test_a_message_without_a_known_word_says_nothing():
    found = judge_message("qwzx vrrk plimf dtuun ggas ooih", MessageFacts(TOOLS))
    assert (found.ambiguity, found.task, found.is_identity_sensitive) == (None, None, False)


def test_a_long_message_has_few_features():
    assert len(find_features(read("delete the meeting with Anna and " * 50_000))) < 6000


def test_only_a_sure_judgement_becomes_a_hint():
    tools = (ToolSpec("ask_user", "Ask the user.", {"type": "object"}),)
    found = judge_message("delete everything")
    assert found.ambiguity is not None
    assert found.ambiguity.confidence >= 0.7
    assert write_hint(found, Policy(), tools)
    unsure = msgspec.structs.replace(found.ambiguity, confidence=0.6)
    assert write_hint(msgspec.structs.replace(found, ambiguity=unsure), Policy(), tools) is None


def test_a_threshold_leaves_out_what_is_more_often_wrong_than_right():
    score = np.array([3.0, 2.5, 2.0, 1.5, 0.5, 0.4, 0.3, -1.0, -2.0])
    is_right = np.array([1, 1, 1, 1, 0, 0, 1, 0, 0], float)
    found = train_judging.find_threshold(score, is_right, np.ones(9), 5.0)
    assert [found.confidence(value) >= found.least - 0.001 for value in score] == [True] * 4 + [False] * 5
    assert found.confidence(3.0) > 0.9 > 0.5 > found.confidence(-1.0)


@pytest.mark.xdist_group("training")
@pytest.mark.filterwarnings("ignore:Sparse")
def test_the_weights_have_the_least_loss():
    """The gradient is zero: what the targets that are not reached pull equals what the ridge pulls back. To import
    torch takes the most of its time."""
    torch = pytest.importorskip("torch", reason="needs torch")
    rng = random.Random(4)
    values = [{rng.randrange(6): 1.0, 6 + rng.randrange(3): 0.5} for _ in range(60)]
    matrix = train_judging.Matrix(values)
    targets = torch.tensor([[1.0 if min(item) in (1, 4) or rng.random() < 0.1 else -1.0] for item in values])
    counts = torch.ones(60, 1)
    weights = train_judging.solve(matrix, targets, counts)
    scores = matrix.score(weights)
    left = counts * (targets * scores < 1) * (targets - scores)
    assert torch.allclose(matrix.gather(left), train_judging.RIDGE * weights, atol=1e-4)
    assert (((targets > 0) == (scores > 0)).float().mean()) > 0.8


@pytest.mark.parametrize(
    ("typed", "usual"),
    [("u cant open it tho", "you can't open it though"), ("eg veit ikkje kva", "jeg veit ikke hva")],
)
def test_a_word_in_another_spelling_is_the_word(typed, usual):
    assert rows_of_words(typed) == rows_of_words(usual)


def test_a_named_file_tells_what_it_holds():
    table, other_table, program = [
        find_features(read(f"look at plan.{ending}")) for ending in ("csv", "XLSX", "py")
    ]
    assert table == other_table
    assert table != program


@pytest.mark.parametrize(
    ("said", "tool"),
    [
        ("Executing scripts is off limits for me, so the timing is for you to measure.", "run_python"),
        ("Web pages are out of my reach. Copy the text here.", "web_fetch"),
        ("I ran the script, and it prints 7.", None),
    ],
)
def test_a_refusal_is_found_without_a_negation(said, tool):
    found = find_refusal(said, tools=TOOLS)
    assert (found and found.tool) == tool
