"""How often the judgements of messages agree with the labels in `data/messages.jsonl`, against keyword rules.

The patterns were corrected with the messages of the split `dev`. Those of `test` were written together with them,
and those of `fresh` after the first patterns; the mistakes in both were never looked at. `data/held.jsonl` was
written and labelled twice by others, who had not seen the patterns. Half of it (`is_read`) was read to write
training texts of its kind; the other half, `held-out`, was read after the last training texts were written.
The sets of `HANDS`, from `data/second.jsonl` to `twentyfourth.jsonl`, were written by sixteen further hands that
had seen neither patterns nor training texts, and labelled twice: by the same hand, and the last two sets, most of
whose labels follow from the sense of several sentences, by two. The author of `second` later
wrote a third of the training texts. Those of `UNSEEN` are by further hands, and for measuring only.
The classifiers learn from these sixteen sets and from the half that was read (the messages that have a `part`), so
the figures of `measure` for them are too good; `train_judging` prints those by weights that were trained without
them. Messages are labelled by the definitions in `data/README.md`, which lists the labels that were corrected.
Precision and recall are exact counts, the same in every run.
"""

from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path

import msgspec
from msgspec import Struct

from benchmarks import keywords
from benchmarks.common import Figure
from treadle.core.types import ToolSpec
from treadle.routing.judging import (
    MessageFacts,
    find_refusal,
    judge_message,
    rate_difficulty,
)

DATA = Path(__file__).parent / "data" / "messages.jsonl"
HELD = DATA.with_name("held.jsonl")
HANDS = [
    DATA.with_name(f"{name}.jsonl")
    for name in (
        "second",
        "ninth",
        "eleventh",
        "twelfth",
        "thirteenth",
        "fourteenth",
        "fifteenth",
        "sixteenth",
        "seventeenth",
        "eighteenth",
        "nineteenth",
        "twentieth",
        "twentyfirst",
        "twentysecond",
        "twentythird",
        "twentyfourth",
    )
]
"""Messages of sixteen other hands. The classifiers learn from them."""
UNSEEN = [DATA.with_name("twentyfifth.jsonl")]
"""Messages of hands that had seen neither judgements nor training texts. Nothing is improved with them."""
GOALS = {
    "ambiguity, en": 0.80,
    "ambiguity, no": 0.85,
    "task": 0.92,
    "identity": 0.90,
    "boilerplate": 0.95,
    "refusal": 0.88,
}
"""The F1 that is wanted on messages of hands that had not seen the judgements."""
TOPICS = (
    "Never provide legal advice.",
    "Do not give medical diagnoses.",
    "Remote work makes small teams faster.",
    "seafood recipes",
)
"""What the persona of the labels may not say, believes and knows."""
TOOLS = tuple(
    ToolSpec(name, description, {"type": "object"})
    for name, description in (
        ("web_search", "Search the web and return the best results."),
        ("web_fetch", "Fetch the text of a web page by its address."),
        ("read_file", "Read a text file."),
        ("write_file", "Write a text file, replacing it if it exists."),
        ("list_files", "List the files of a folder."),
        ("delete_file", "Delete a file."),
        ("generate_image", "Create an image from a description."),
        ("run_python", "Run Python code in a sandbox and return what it prints."),
        ("send_email", "Send an e-mail to a recipient."),
        ("create_event", "Create an event in the user's calendar."),
        ("get_weather", "Return the weather forecast for a place."),
        ("query_database", "Run a read-only SQL query against the sales database."),
    )
)


class Labelled(Struct, frozen=True):
    """A message with its labels."""

    role: str
    """`user`, or `assistant` for an answer that is judged for refusals."""
    text: str
    language: str
    split: str
    is_hard: bool
    """True for a message that looks like another label."""
    is_known: bool = False
    """True for a message, or one like it, that the rules of the baseline are known to get wrong."""
    has_history: bool = False
    follows_question: bool = False
    ambiguity: str | None = None
    missing: str | None = None
    task: tuple[str, ...] = ()
    """The kinds of work that are right; none if an answer suffices."""
    boilerplate: bool = False
    identity: bool = False
    difficulty: str = "easy"
    refuses: tuple[str, ...] = ()
    """The tools of which one is refused; any of them is right."""


class Labels(Struct, frozen=True):
    """What one person says about a message. The fields are those of `Labelled`."""

    ambiguity: str | None = None
    task: tuple[str, ...] = ()
    boilerplate: bool = False
    identity: bool = False
    refuses: tuple[str, ...] = ()


class HeldOut(Struct, frozen=True):
    """A message with two labels: of two people who did not see each other's, or of one person at two times."""

    role: str
    text: str
    language: str
    has_history: bool
    follows_question: bool
    labels: tuple[Labels, Labels]


class Counts(Struct):
    """How often a judgement was right."""

    right: int = 0
    """Found and right."""
    found: int = 0
    wanted: int = 0
    agreed: int = 0
    """Right, or rightly not found."""
    total: int = 0

    @property
    def precision(self) -> float:
        """The share of what was found that is right."""
        return self.right / self.found if self.found else 1.0

    @property
    def recall(self) -> float:
        """The share of what should be found that was."""
        return self.right / self.wanted if self.wanted else 1.0

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall."""
        both = self.found + self.wanted
        return 2 * self.right / both if both else 1.0

    @property
    def accuracy(self) -> float:
        """The share of the messages that were judged right."""
        return self.agreed / self.total if self.total else 1.0


Guess = tuple[Sequence[str], Sequence[str]]
"""What was found, and what is right: any of it, or nothing if empty."""


def load_messages() -> list[Labelled]:
    """Return the labelled messages."""
    lines = DATA.read_text(encoding="utf-8").splitlines()
    return [msgspec.json.decode(line, type=Labelled) for line in lines]


def load_held_out(path: Path = HELD) -> list[HeldOut]:
    """Return the messages of a file with two labels each."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [msgspec.json.decode(line, type=HeldOut) for line in lines]


def is_read(message: HeldOut) -> bool:
    """Return whether a message of `HELD` is in the half that training texts were written after."""
    return sha256(message.text.encode()).digest()[0] % 2 == 0


def _listed(value: object) -> list[str]:
    return [] if value in (None, False) else [str(value)]


def _judge(message: Labelled) -> dict[str, Guess]:
    facts = MessageFacts(TOOLS, message.has_history, message.follows_question, TOPICS)
    if message.role == "assistant":
        refusal = find_refusal(message.text, tools=TOOLS)
        return {"refusal": (_listed(refusal and refusal.tool), message.refuses)}
    found = judge_message(message.text, facts)
    return {
        "ambiguity": (_listed(found.ambiguity and found.ambiguity.kind), _listed(message.ambiguity)),
        "task": (_listed(found.task and found.task.kind), message.task),
        "boilerplate": (_listed(found.is_boilerplate), _listed(message.boilerplate)),
        "identity": (_listed(found.is_identity_sensitive), _listed(message.identity)),
    }


def _judge_by_keywords(message: Labelled) -> dict[str, Guess]:
    text = message.text
    if message.role == "assistant":
        return {"refusal": (_listed(keywords.find_refused(text)), message.refuses)}
    gap = keywords.find_gap(text, has_history=message.has_history)
    return {
        "ambiguity": (_listed(gap), _listed(message.ambiguity)),
        "task": (_listed(keywords.find_task(text)), message.task),
        "boilerplate": (_listed(keywords.is_trivial(text)), _listed(message.boilerplate)),
        "identity": (_listed(keywords.is_about_identity(text, TOPICS)), _listed(message.identity)),
    }


def count(
    messages: Sequence[Labelled], judge: Callable[[Labelled], dict[str, Guess]] = _judge
) -> dict[str, Counts]:
    """Return for each judgement how often it agrees with the labels; `all` has them together."""
    counts: dict[str, Counts] = {}
    for message in messages:
        for name, (found, wanted) in judge(message).items():
            for item in (counts.setdefault(name, Counts()), counts.setdefault("all", Counts())):
                _add(item, found, wanted)
    return counts


def _add(counts: Counts, found: Sequence[str], wanted: Sequence[str]) -> None:
    is_right = bool(set(found) & set(wanted))
    counts.right += is_right
    counts.found += bool(found)
    counts.wanted += bool(wanted)
    counts.agreed += is_right or not (found or wanted)
    counts.total += 1


def count_held_out(
    messages: Sequence[HeldOut], judge: Callable[[Labelled], dict[str, Guess]] = _judge
) -> dict[str, list[Counts]]:
    """Return for each judgement four counts: against either labeller (what agrees with one of them is right),
    against the first, against the second, and of the second against the first."""
    counts: dict[str, list[Counts]] = {}
    for message in messages:
        one, two = [_labelled(message, labels) for labels in message.labels]
        judged = judge(one)
        for (name, (found, first)), second in zip(
            judged.items(), [wanted for _, wanted in judge(two).values()], strict=True
        ):
            is_either = not (first and second) and not (bool(found) and found[0] in (*first, *second))
            either: Sequence[str] = () if is_either else (*first, *second)
            names = [name, f"{name}, {message.language}"]
            for place in names:
                four = counts.setdefault(place, [Counts() for _ in range(4)])
                for item, guess, wanted in zip(
                    four, (found, found, found, second), (either, first, second, first), strict=True
                ):
                    _add(item, guess, wanted)
    return counts


def _labelled(message: HeldOut, labels: Labels) -> Labelled:
    return Labelled(
        role=message.role,
        text=message.text,
        language=message.language,
        split="held",
        is_hard=False,
        has_history=message.has_history,
        follows_question=message.follows_question,
        ambiguity=labels.ambiguity,
        task=labels.task,
        boilerplate=labels.boilerplate,
        identity=labels.identity,
        refuses=labels.refuses,
    )


def count_difficulty(messages: Sequence[Labelled]) -> float:
    """Return the share of pairs with different labels of difficulty that the numbers order rightly; equal
    numbers are half right."""
    rated = [
        (("easy", "medium", "hard").index(item.difficulty), rate_difficulty(item.text))
        for item in messages
        if item.role == "user"
    ]
    pairs = [(one, other) for one in rated for other in rated if one[0] < other[0]]
    return sum((one[1] < other[1]) + (one[1] == other[1]) / 2 for one, other in pairs) / max(1, len(pairs))


def find_mistakes(messages: Sequence[Labelled]) -> list[str]:
    """Return a line for each judgement that differs from its label."""
    lines = []
    for message in messages:
        for name, (found, wanted) in _judge(message).items():
            if not (found and found[0] in wanted) and (found or wanted):
                lines.append(f"{name}: found {list(found)}, labelled {list(wanted)}: {message.text}")
    return lines


async def measure() -> list[Figure]:
    """Return the figures of the judgements."""
    messages = load_messages()
    parts = {
        "test": [item for item in messages if item.split == "test"],
        "fresh": [item for item in messages if item.split == "fresh"],
        "dev": [item for item in messages if item.split == "dev"],
        "known to be wrong": [item for item in messages if item.is_known],
        "hard": [item for item in messages if item.is_hard],
    }
    figures = []
    for part, chosen in parts.items():
        ours, theirs = count(chosen), count(chosen, _judge_by_keywords)
        for name, counts in ours.items():
            other = theirs[name]
            if part in ("known to be wrong", "hard"):
                value, least, note = counts.accuracy, other.accuracy, "judged right"
                if name != "all":
                    continue
            else:
                value, least, note = counts.f1, other.f1, "F1"
            detail = (
                f"precision {counts.precision:.3f}, recall {counts.recall:.3f},"
                f" {counts.accuracy:.3f} right; keywords: "
                f"precision {other.precision:.3f}, recall {other.recall:.3f}, {other.accuracy:.3f} right; "
                f"{counts.wanted} of {counts.total} judgements are positive"
            )
            figures.append(Figure(f"judging, {name}, {part}, {note}", value, f">= {least:.3f}", detail))
        if part in ("fresh", "test", "dev"):
            share = count_difficulty(chosen)
            figures.append(
                Figure(
                    f"judging, difficulty, {part}, pairs in order", share, ">= 0.5", "keywords have no rating"
                )
            )
    held = load_held_out()
    figures += _measure_held_out("read half", [item for item in held if is_read(item)], {})
    for path in HANDS:
        figures += _measure_held_out(path.stem, load_held_out(path), {})
    for path in UNSEEN:
        figures += _measure_held_out(path.stem, load_held_out(path), GOALS)
    return figures + _measure_held_out("held-out", [item for item in held if not is_read(item)], GOALS)


def _measure_held_out(part: str, messages: Sequence[HeldOut], goals: dict[str, float]) -> list[Figure]:
    figures = []
    counts = count_held_out(messages)
    for name, (either, one, two, both) in counts.items():
        figures.append(
            Figure(
                f"judging, {name}, {part}, F1",
                either.f1,
                f">= {goals.get(name, 0):.2f}",
                f"precision {either.precision:.3f}, recall {either.recall:.3f}, {either.right} right of "
                f"{either.found} found; F1 against each labeller {one.f1:.3f}, {two.f1:.3f}; "
                f"between the labellers {both.f1:.3f}",
            )
        )
    return figures
