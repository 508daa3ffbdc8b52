"""Train the classifiers of messages and answers: `python -m benchmarks.train_judging` (needs numpy and torch).

They learn from the files `data/written*.jsonl`, from the split `dev` of `data/messages.jsonl`, and from messages
with two labels that have a `part`: linear classifiers with the squared hinge loss, which has one solution, so the
same data give the same weights. Confidence and thresholds come from messages that were left out: the parts of each
hand are predicted from the others.
"""

import json
from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
from msgspec import Struct

if TYPE_CHECKING:
    import torch

from benchmarks.judging import DATA, HANDS, HELD, TOOLS
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
RIDGE, KNOWN, BIAS = 0.5, 0.55, 0.7
NEWTON_STEPS, GRADIENTS = 6, 15
NEARER_STEPS = 3
"""The number of Newton steps from the weights of all messages to those without one hand."""
FIRST_HAND = 20
"""The least part of the messages that are as users write them."""
DEV_WEIGHT, HAND_WEIGHT, TASK_WEIGHT = 8, 2, 4
"""How many times an example of `dev` counts, most of whose messages look like another label, and one of a hand that
had seen no training texts, for most heads and for tasks: its messages are as users write them."""
ALONE = (8, 15, 18, 19, *range(21, 53))
FOLDS = ((0, 10), (1, 2, 3), (4, 5, 6, 7, 20), (9, 11), (12, 13, 14, 16, 17), *[(part,) for part in ALONE])
"""The parts that are left out together: those of one hand, and small ones with another."""
SINGLE = (36, 37, 38, 39, 40, 52)
"""The parts that are training texts: four sets of messages whose labels follow from the sense of several sentences,
and two of short requests. They say little about how often something is left open, so thresholds are chosen with the
others."""
BETAS = {"refusal": 0.6, "ambiguity": 0.9}
"""How important recall is for a threshold beside precision, where it is not as important: an answer that is taken
for a refusal is asked for once more, and a hint about a gap that there is not costs a question."""
WRITTEN_WEIGHT = 0.5
"""How much all training texts count for a threshold beside all messages of the hands that had seen none, with the
same share of positives: they keep the thresholds of heads steady that apply to few messages."""
STEP = 0.08
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

    def counts(self, head: str) -> float:
        """Return how many times the example counts for a head."""
        is_told = head not in ("missing", "tool") or bool(self.labels(head))
        hand = TASK_WEIGHT if head == "task" else HAND_WEIGHT
        times = hand if is_of_hand(self.part) else 1 if self.part else DEV_WEIGHT
        return is_told * float(times)


def is_of_hand(part: int) -> bool:
    """Return whether a part has messages as users write them, of a writer who had seen no training texts."""
    return part >= FIRST_HAND and part not in SINGLE


def load_examples(role: str) -> list[Example]:
    """Return the examples of a role. Messages of the tests are left out."""
    paths = (*WRITTEN, *HANDS, HELD, DATA)
    found = [_read_example(json.loads(line)) for path in paths for line in path.read_bytes().splitlines()]
    return [item for item in found if item.role == role and item.split == "dev"]


def _read_example(values: dict[str, Any]) -> Example:
    """Return the example of a line. Of two labels the first counts; without a `part` they are for tests alone."""
    if "labels" in values:
        values |= {"split": "dev" if "part" in values else "test"} | values["labels"][0]
        values["missing"] = next(iter(values.get("missing", ())), None)
    return msgspec.convert(values, Example)


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


class Matrix:
    """The features of some examples as a sparse matrix, one row for each example."""

    def __init__(self, values: Sequence[dict[int, float]]) -> None:
        import torch

        seen = np.bincount([row for item in values for row in item], minlength=ROWS)
        self.rows = np.flatnonzero(seen >= LEAST_SEEN)
        """The rows of the table for which weights are learned, one for each column."""
        column = np.full(ROWS, -1)
        column[self.rows] = np.arange(len(self.rows))
        kept = [
            [(int(column[row]), value) for row, value in item.items() if column[row] >= 0] for item in values
        ]
        starts = np.cumsum([0, *map(len, kept)])
        pairs = [pair for item in kept for pair in item]
        self._matrix = torch.sparse_csr_tensor(
            torch.from_numpy(starts),
            torch.tensor([place for place, _ in pairs]),
            torch.tensor([value for _, value in pairs], dtype=torch.float32),
            (len(kept), len(self.rows)),
        )
        self._turned = self._matrix.to_sparse_coo().t().coalesce().to_sparse_csr()

    def score(self, weights: "torch.Tensor") -> "torch.Tensor":
        """Return the scores of all examples. The last row of `weights` is the bias."""
        return self._matrix @ weights[:-1] + BIAS * weights[-1]

    def gather(self, scores: "torch.Tensor") -> "torch.Tensor":
        """Return the sums of `scores` for each weight."""
        import torch

        return torch.cat([self._turned @ scores, BIAS * scores.sum(0, keepdim=True)])


def solve(
    matrix: Matrix, targets: "torch.Tensor", counts: "torch.Tensor", near: "torch.Tensor | None" = None
) -> "torch.Tensor":
    """Return the weights with the least squared hinge loss.

    `targets` are 1 and -1, `counts` say how many times each target counts; both have a row for each example and
    a column for each output. Each of the `NEWTON_STEPS` solves the least squares of the targets that are not yet
    reached, by conjugate gradients. From weights that are `near` the solution it takes `NEARER_STEPS`.
    """
    import torch

    weights = torch.zeros(len(matrix.rows) + 1, targets.shape[1]) if near is None else near.clone()
    active = counts if near is None else counts * (targets * matrix.score(weights) < 1)
    for _ in range(NEWTON_STEPS if near is None else NEARER_STEPS):
        rest = matrix.gather(active * (targets - matrix.score(weights))) - RIDGE * weights
        way, size = rest.clone(), (rest * rest).sum(0)
        for _ in range(GRADIENTS):
            bent = matrix.gather(active * matrix.score(way)) + RIDGE * way
            length = size / ((way * bent).sum(0) + 1e-12)
            weights += length * way
            rest -= length * bent
            new = (rest * rest).sum(0)
            way = rest + new / (size + 1e-20) * way
            size = new
        active = counts * (targets * matrix.score(weights) < 1)
    return weights


def find_threshold(
    score: np.ndarray[Any, Any],
    is_right: np.ndarray[Any, Any],
    counts: np.ndarray[Any, Any],
    wanted: float,
    beta: float = 1.0,
) -> trained.Threshold:
    """Return how scores of examples that were left out become confidence, by logistic regression, and the least
    confidence with the highest F of `beta`, if each example is right as often as its confidence says: a few
    examples near the threshold do not move it. `counts` say how many times each example counts, `wanted` of them
    positive."""
    line, points = np.zeros(2), np.stack([score, np.ones_like(score)], 1)
    share = counts / counts.sum()
    for _ in range(30):
        chance = 1 / (1 + np.exp(-points @ line))
        bend = points.T * (share * chance * (1 - chance)) @ points + 1e-7 * np.eye(2)
        line -= np.linalg.solve(bend, points.T @ (share * (chance - is_right)))
    slope, offset = map(float, line)
    order = np.argsort(-score)
    chance = 1 / (1 + np.exp(-points @ line))
    right, found = np.cumsum((counts * chance)[order]), np.cumsum(counts[order])
    best = score[order][np.argmax(right / (found + beta**2 * wanted))]
    least = 1 / (1 + np.exp(-(slope * best + offset)))
    return trained.Threshold(round(slope, 4), round(offset, 4), round(float(least), 3))


def find_thresholds(
    name: str, examples: Sequence[Example], scores: np.ndarray[Any, Any]
) -> dict[str, trained.Threshold]:
    """Return the thresholds of the heads by scores of examples that were left out, and print F1 and precision."""
    languages = np.array([read(item.text).language for item in examples])
    parts = np.array([item.part for item in examples])
    is_hand = np.array([is_of_hand(item.part) for item in examples])
    is_written = (parts > 0) & ~is_hand
    found, start = {}, 0
    for head, outputs in HEADS[name].items():
        columns = scores[:, start : start + len(outputs)]
        start += len(outputs)
        wanted = np.array([bool(set(item.labels(head)) - {trained.NONE}) for item in examples])
        if outputs[0] == trained.NONE:
            best = columns[:, 1:].argmax(1) + 1
            score = columns[:, 1:].max(1) - columns[:, 0]
            right = np.array(
                [outputs[at] in item.labels(head) for at, item in zip(best, examples, strict=True)]
            )
        elif len(outputs) == 1:
            score, right = columns[:, 0], wanted
        else:
            continue
        usual, share = wanted[is_hand].mean(), wanted[is_written].mean()
        counts = is_written * np.where(wanted, usual / share, (1 - usual) / (1 - share))
        counts = is_hand + counts * (WRITTEN_WEIGHT * is_hand.sum() / counts.sum())
        found[head] = find_threshold(
            score, right, counts, float((counts * wanted).sum()), BETAS.get(head, 1.0)
        )
        sure = 1 / (1 + np.exp(-(found[head].slope * score + found[head].offset))) >= found[head].least
        print(f"{name}, {head}: {found[head]}")
        for code in ("en", "no"):
            for fold in FOLDS:
                here = (languages == code) & np.isin(parts, fold)
                shares = here if fold[0] >= FIRST_HAND else here * counts
                hits, said, asked = [(shares * chosen).sum() for chosen in (sure & right, sure, wanted)]
                print(
                    f"  {code}, parts {fold}: F1 {2 * hits / max(1, said + asked):.3f}, precision"
                    f" {hits / max(1, said):.3f}, {(wanted & here).sum()} wanted of {here.sum()}"
                )
    return found


def train(name: str, role: str) -> None:
    """Train one classifier and write its weights."""
    import torch

    torch.set_num_threads(1)
    examples = load_examples(role)
    outputs = [(head, output) for head, names in HEADS[name].items() for output in names]
    targets = torch.tensor(
        [[1.0 if out in item.labels(head) else -1.0 for head, out in outputs] for item in examples]
    )
    counts = torch.tensor([[item.counts(head) for head, _ in outputs] for item in examples])
    matrix = Matrix([find_values(item) for item in examples])
    weights = solve(matrix, targets, counts)
    scores = np.zeros(targets.shape, np.float32)
    for fold in FOLDS:
        out = torch.tensor([item.part in fold for item in examples])
        without = solve(matrix, targets, counts * ~out[:, None], weights)
        scores[out.numpy()] = matrix.score(without)[out].numpy()
    thresholds = find_thresholds(name, examples, scores)
    numbers = np.zeros((ROWS, len(outputs)), int)
    numbers[matrix.rows] = np.clip(np.round(weights[:-1].numpy() / STEP), -127, 127)
    header = trained.Header(
        {head: list(map(str, names)) for head, names in HEADS[name].items()},
        thresholds,
        STEP,
        KNOWN,
        [round(BIAS * float(value), 4) for value in weights[-1]],
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
