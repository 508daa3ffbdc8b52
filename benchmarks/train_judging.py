"""Train the classifiers of messages and answers: `python -m benchmarks.train_judging` (needs numpy).

They learn from the files `data/written*.jsonl` and from the split `dev` of `data/messages.jsonl`, by ridge
regression, which has a solution in closed form: the same data give the same weights. Confidence comes from
predictions of messages that were left out: each part of the data is predicted from the others.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import Struct

from benchmarks.judging import DATA, TOOLS
from treadle.core.judgement import AmbiguityClass, Missing, TaskKind
from treadle.routing.judging import classifier as trained
from treadle.routing.judging.clauses import read
from treadle.routing.judging.features import ROWS, find_features
from treadle.routing.judging.inabilities import find_known, profile_tools, rows_of_known
from treadle.routing.judging.judgements import letters_of, read_known

WRITTEN = sorted(DATA.parent.glob("written*.jsonl"))
"""The files of the training texts; each hand that writes texts has a file or a part of its own."""
WEIGHTS = Path(trained.__file__).parent / "weights"
SUBJECTS = ("self", "law", "medicine", "seafood", "remote_work")
"""What a message can be about that matters to a persona; `self` is the assistant itself."""
ANSWERS = {
    "web_search": "answer_search",
    "web_fetch": "answer_page",
    "get_weather": "answer_weather",
    "read_file": "answer_read",
    "write_file": "answer_write",
    "list_files": "answer_list",
    "delete_file": "answer_delete",
    "generate_image": "answer_image",
    "run_python": "answer_code",
    "send_email": "answer_mail",
    "create_event": "answer_calendar",
    "query_database": "answer_database",
}
"""The name in `patterns.toml` for each tool of the labels."""
HEADS = {
    "messages": {
        "ambiguity": [trained.NONE, *AmbiguityClass],
        "missing": [*Missing],
        "task": [trained.NONE, *TaskKind],
        "boilerplate": ["boilerplate"],
        **{name: [name] for name in SUBJECTS},
    },
    "answers": {"refusal": ["refusal"], "tool": [*ANSWERS.values()]},
}
RIDGE, KNOWN, BIAS = 0.4, 0.55, 0.5
DEV_WEIGHT = 4
"""How many times an example of `dev` counts: most of its messages look like another label."""
LEAST = {"ambiguity": 0.35, "task": 0.35, "law": 0.4, "medicine": 0.4, "seafood": 0.4, "remote_work": 0.4}
"""The least confidence with which something is said, where it is not 0.5: about half of the F1 that is reached,
which is where F1 is highest."""
LEAST_SHORT = {"ambiguity": 0.6, "task": 0.5}
"""The same for short messages, where it differs: in `dev`, most short messages that look ambiguous are not."""
STEP = 0.06
"""The weight of a number 1 in the file."""
LEAST_SEEN = 4
"""In how many messages a feature must occur to get a weight."""


class Example(Struct, frozen=True):
    """A message or answer with its labels."""

    role: str
    text: str
    has_history: bool = False
    follows_question: bool = False
    ambiguity: str | None = None
    missing: str | None = None
    task: tuple[str, ...] = ()
    boilerplate: bool = False
    about: str | None = None
    """One of `SUBJECTS`."""
    identity: bool = False
    refuses: tuple[str, ...] = ()
    part: int = 0
    """The part of the data that is left out together; 0 for the split `dev`."""
    split: str = "dev"

    def labels(self, head: str) -> tuple[str, ...]:
        """Return the outputs of a head that are right."""
        if head == "ambiguity":
            return (self.ambiguity or trained.NONE,)
        if head == "missing":
            return (self.missing,) if self.missing else ()
        if head == "task":
            return self.task or (trained.NONE,)
        if head == "tool":
            return tuple([ANSWERS[name] for name in self.refuses])
        if head == "refusal":
            return (head,) if self.refuses else ()
        return (head,) if (self.boilerplate if head == "boilerplate" else self.about == head) else ()


def load_examples(role: str) -> list[Example]:
    """Return the examples of a role."""
    lines = [line for path in (*WRITTEN, DATA) for line in path.read_bytes().splitlines()]
    found = [msgspec.json.decode(line, type=Example) for line in lines]
    return [item for item in found if item.role == role and item.split == "dev"]


def find_values(example: Example) -> dict[int, float]:
    """Return the values of the features of an example, by row."""
    reading = read(example.text)
    if example.role == "assistant":
        rows, known = find_features(reading), rows_of_known(find_known(reading, profile_tools(TOOLS)))
    else:
        rows = find_features(reading, letters_of(example.has_history, example.follows_question))
        known = read_known(reading, example.has_history, example.follows_question).rows
    values = dict.fromkeys(rows, 1 / np.sqrt(len(rows)))
    for row in known:
        values[row] = values.get(row, 0.0) + KNOWN
    return values


def find_products(values: Sequence[dict[int, float]]) -> np.ndarray[Any, Any]:
    """Return the products of each example with each."""
    columns: dict[int, list[int]] = {}
    for number, item in enumerate(values):
        for row in item:
            columns.setdefault(row, []).append(number)
    size = len(values)
    products = np.zeros((size, size), np.float32)
    rare = {row: found for row, found in columns.items() if len(found) <= 60}
    for row, found in rare.items():
        cells = np.array([values[number][row] for number in found], np.float32)
        products[np.ix_(found, found)] += cells[:, None] * cells[None, :]
    common = [row for row in columns if row not in rare]
    for start in range(0, len(common), 2000):
        block = np.zeros((size, min(2000, len(common) - start)), np.float32)
        for place, row in enumerate(common[start : start + 2000]):
            for number in columns[row]:
                block[number, place] = values[number][row]
        products += block @ block.T
    return products + BIAS


def solve(
    products: np.ndarray[Any, Any], targets: np.ndarray[Any, Any], parts: np.ndarray[Any, Any]
) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the share of each example in the weights, and the score of each by the weights of the other parts.

    One inverse gives both: leaving a part out changes its scores by a solution as large as the part.
    """
    ridge = np.where(parts == 0, RIDGE / DEV_WEIGHT, RIDGE).astype(np.float32)
    inverse = np.linalg.inv(products + np.diag(ridge))
    shares = inverse @ targets
    scores = np.zeros_like(targets)
    for part in sorted(set(parts.tolist())):
        out = np.where(parts == part)[0]
        scores[out] = targets[out] - np.linalg.solve(inverse[np.ix_(out, out)], shares[out])
    return shares, scores


def find_threshold(
    head: str, score: np.ndarray[Any, Any], is_right: np.ndarray[Any, Any]
) -> trained.Threshold:
    """Return how scores of examples that were left out become confidence, by logistic regression."""
    slope, offset = 1.0, 0.0
    for _ in range(3000):
        chance = 1 / (1 + np.exp(-(slope * score + offset)))
        slope -= 4.0 * float(np.mean((chance - is_right) * score))
        offset -= 4.0 * float(np.mean(chance - is_right))
    return trained.Threshold(
        round(slope, 4), round(offset, 4), LEAST.get(head, 0.5), LEAST_SHORT.get(head, LEAST.get(head, 0.5))
    )


def find_thresholds(
    name: str, examples: Sequence[Example], scores: np.ndarray[Any, Any]
) -> dict[str, trained.Threshold]:
    """Return the thresholds of the heads by scores of examples that were left out."""
    parts = np.array([item.part for item in examples])
    found, start = {}, 0
    for head, outputs in HEADS[name].items():
        columns = scores[:, start : start + len(outputs)]
        start += len(outputs)
        wanted = np.array([bool(set(item.labels(head)) - {trained.NONE}) for item in examples])
        if outputs[0] == trained.NONE:
            best = columns[:, 1:].argmax(1) + 1
            score = columns.max(1, where=np.arange(len(outputs)) > 0, initial=-9) - columns[:, 0]
            right = [outputs[at] in item.labels(head) for at, item in zip(best, examples, strict=True)]
        elif len(outputs) == 1:
            score, right = columns[:, 0], list(wanted)
        else:
            continue
        found[head] = find_threshold(head, score, np.array(right))
        short = np.array([len(read(item.text).words) <= 8 for item in examples])
        least = np.where(short, found[head].least_short, found[head].least)
        sure = 1 / (1 + np.exp(-(found[head].slope * score + found[head].offset))) >= least
        print(f"{name}, {head}: {found[head]}")
        for part in sorted(set(parts.tolist())):
            here = parts == part
            hits = (sure & np.array(right) & here).sum()
            counts = f"{hits} right of {(sure & here).sum()} found, {(wanted & here).sum()} wanted"
            print(
                f"  part {part}: F1 {2 * hits / max(1, (sure & here).sum() + (wanted & here).sum()):.3f}, {counts}"
            )
    return found


def train(name: str, role: str) -> None:
    """Train one classifier and write its weights."""
    examples = load_examples(role)
    outputs = [(head, output) for head, names in HEADS[name].items() for output in names]
    targets = np.zeros((len(examples), len(outputs)), np.float32)
    for number, item in enumerate(examples):
        for place, (head, output) in enumerate(outputs):
            right = item.labels(head)
            targets[number, place] = (output in right) / max(1, len(right))
    values = [find_values(item) for item in examples]
    products = find_products(values)
    shares, scores = solve(products, targets, np.array([item.part for item in examples]))
    thresholds = find_thresholds(name, examples, scores)
    weights, seen = np.zeros((ROWS, len(outputs)), np.float32), np.zeros(ROWS, int)
    for item, share in zip(values, shares, strict=True):
        rows = np.fromiter(item, int)
        weights[rows] += np.fromiter(item.values(), np.float32)[:, None] * share
        seen[rows] += 1
    weights[seen < LEAST_SEEN] = 0
    numbers = np.clip(np.round(weights / STEP), -127, 127).astype(int)
    header = trained.Header(
        {head: list(map(str, names)) for head, names in HEADS[name].items()},
        thresholds,
        STEP,
        KNOWN,
        [round(float(value), 4) for value in BIAS * shares.sum(0)],
        digest(),
    )
    WEIGHTS.mkdir(exist_ok=True)
    content = msgspec.json.encode(header) + b"\n" + trained.pack_rows(numbers.tolist())
    (WEIGHTS / f"{name}.bin").write_bytes(content)
    print(f"{name}: {len(examples)} examples, {len(content)} bytes")


def digest() -> str:
    """Return the digest of the examples, which the weights name."""
    rows = [
        [json.dumps(msgspec.to_builtins(item)) for item in load_examples(role)]
        for role in ("user", "assistant")
    ]
    return sha256(json.dumps(rows).encode()).hexdigest()[:16]


if __name__ == "__main__":
    train("messages", "user")
    train("answers", "assistant")
