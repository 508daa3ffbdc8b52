"""How often the evidence for questions about long conversations is recalled, and what is recalled for nothing.

The conversations and questions are those of LoCoMo (Maharana et al., ACL 2024), which has no licence that allows a
copy here: `TREADLE_LOCOMO` is the path of `locomo10.zip` from github.com/snap-research/locomo, or of a folder with
its files. What a person said in one turn is written as one episode, in the order of the conversation and with its
session as the run; the caption of a picture follows the text. Each question is a message of a new session after
the last one, and its evidence are turns. The figures are those of six of the ten conversations, and of every second
line of `data/unrelated.txt`; the rest (`TREADLE_SPLIT=tune`) was used to choose the constants of the search.
"""

import json
import os
import re
import sqlite3
import zipfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import mean

from msgspec import Struct

from benchmarks.common import Figure, serving
from benchmarks.minilm import find_folder
from treadle.core.types import Recalled
from treadle.journal.memory import MemoryJournal
from treadle.knowledge.memory import Author, Draft, Memory, Recaller, Store, make_embedder, open_memory

TUNE = ("26", "41", "43", "48")
"""The conversations that the constants of the search were chosen with."""
UNRELATED = Path(__file__).parent / "data" / "unrelated.txt"
"""Messages for which no memory is needed."""
KINDS = {1: "multi-hop", 2: "temporal", 3: "open", 4: "single-hop"}
"""The categories of questions. Those of category 5 have no answer, and are left out."""
NOW = 1_800_000_000.0
_DAY = 86_400.0
_SESSION_DAYS = 7
_TURN_SECONDS = 60.0
_BATCH = 2_000
_PLACE = re.compile(r"D\d+:\d+")


class Said(Struct, frozen=True):
    """What somebody said in one turn."""

    place: str
    """The name of the turn, such as `D3:12`."""
    session: int
    text: str


class Question(Struct, frozen=True):
    """A question, and the turns that answer it."""

    text: str
    kind: int
    evidence: frozenset[str]


class Conversation(Struct, frozen=True):
    """A conversation of several sessions, and the questions about it."""

    name: str
    said: tuple[Said, ...]
    questions: tuple[Question, ...]


class Shares(Struct):
    """The shares of the evidence that were found, of each question and by its kind."""

    first5: dict[int, list[float]]
    first10: dict[int, list[float]]

    def add(self, question: Question, found: Sequence[str]) -> None:
        """Count what was found for a question, the best first."""
        for shares, count in ((self.first5, 5), (self.first10, 10)):
            shares[question.kind].append(len(question.evidence & {*found[:count]}) / len(question.evidence))

    def of(self, kind: int | None = None) -> tuple[float, float]:
        """Return the mean shares among the first 5 and 10, of one kind or of all questions."""
        both = [
            [share for key, found in shares.items() if kind in (None, key) for share in found]
            for shares in (self.first5, self.first10)
        ]
        return mean(both[0]), mean(both[1])

    def __str__(self) -> str:
        parts = ("{}: {:.3f} {:.3f}".format(name, *self.of(kind)) for kind, name in KINDS.items())
        return f"first 5 and 10 by kind: {', '.join(parts)}"


async def measure() -> list[Figure]:
    """Return the figures; none if the conversations are not there."""
    given = os.environ.get("TREADLE_LOCOMO")
    if not given:
        print("skipped: TREADLE_LOCOMO is not the path of locomo10.zip (github.com/snap-research/locomo)")
        return []
    is_tuning = os.environ.get("TREADLE_SPLIT") == "tune"
    talks = [item for item in read_conversations(Path(given)) if (item.name in TUNE) is is_tuning]
    unrelated = UNRELATED.read_text(encoding="utf-8").splitlines()[not is_tuning :: 2]
    plain = _make_shares()
    for talk in talks:
        for question, found in zip(talk.questions, search_bm25(talk), strict=True):
            plain.add(question, found)
    figures = await _measure(talks, unrelated, None, plain)
    if find_folder() is not None:
        with serving("benchmarks.minilm") as base_url:
            figures += await _measure(talks, unrelated, base_url, plain)
    return figures


async def _measure(
    talks: Sequence[Conversation], unrelated: Sequence[str], base_url: str | None, plain: Shares
) -> list[Figure]:
    """Return the figures of the search by words, or with the embeddings of a server."""
    shares, recalled = _make_shares(), 0
    for talk in talks:
        with MemoryJournal() as journal:
            memory = open_memory(journal, "bench", talk.name)
            places = fill(memory, talk)
            if base_url is not None:
                memory.embedder = make_embedder("vllm:all-minilm-l6-v2", base_url=base_url)
                while await memory.embed_missing(_BATCH):
                    pass
            for question in talk.questions:
                shares.add(question, [places[name] for name in await _recall(memory, question.text)])
            for text in unrelated:
                recalled += bool(await _recall(memory, text))
    what = "words alone" if base_url is None else "all-MiniLM-L6-v2"
    wanted = (0.57, 0.66, 0.38) if base_url is None else (0.62, 0.72, 0.45)
    first5, first10 = shares.of()
    note = "BM25 of SQLite with Porter's stems: {:.3f} and {:.3f}; {}".format(*plain.of(), plain)
    asked = f"{len(unrelated)} messages in each of {len(talks)} conversations"
    return [
        Figure(f"evidence in the first 5, {what}", first5, f">= {wanted[0]}", str(shares)),
        Figure(f"evidence in the first 10, {what}", first10, f">= {wanted[1]}", note),
        Figure(f"multi-hop evidence in the first 5, {what}", shares.of(1)[0], f">= {wanted[2]}", ""),
        Figure(
            f"unrelated messages that recall something, {what}",
            recalled / len(unrelated) / len(talks),
            "<= 0.075",
            asked,
        ),
    ]


async def _recall(memory: Memory, text: str) -> list[str]:
    """Return the ids of the memories that are recalled for a message, the best first.

    The memory is not changed, so that no question depends on the ones before.
    """
    recaller = Recaller(memory, max_tokens=100_000, max_items=10)
    recalled: Recalled | None = await recaller.recall(text, turn_key="question/1", now=NOW)
    return [] if recalled is None else [item.item_id for item in recalled.items]


def fill(memory: Memory, talk: Conversation) -> dict[str, str]:
    """Write a conversation as episodes, one session a week up to `NOW`, and return the turn of each by its id.

    One that is like an earlier one is merged with it, and both turns count as the earlier one's.
    """
    places: dict[str, str] = {}
    last = talk.said[-1].session
    for number, said in enumerate(talk.said):
        at = NOW - (last - said.session + 1) * _SESSION_DAYS * _DAY + number * _TURN_SECONDS
        draft = Draft(
            store=Store.EPISODIC,
            text=said.text,
            author=Author.SYSTEM,
            key=said.place,
            metadata={"run": f"session-{said.session}"},
        )
        entry = memory.store.write(draft, at).entry
        assert entry is not None
        places.setdefault(entry.entry_id, said.place)
    # Every question counts as the first one of its turn: episodes grow no stronger by being recalled.
    memory.store.strengthen([next(iter(places))], "question/1", NOW)
    return places


def search_bm25(talk: Conversation) -> Iterator[list[str]]:
    """Yield the turns that fit each question by SQLite's own BM25, which is the baseline."""
    db = sqlite3.connect(":memory:")
    db.execute("CREATE VIRTUAL TABLE turns USING fts5(place UNINDEXED, text, tokenize='porter unicode61')")
    db.executemany("INSERT INTO turns VALUES(?,?)", [(item.place, item.text) for item in talk.said])
    for question in talk.questions:
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", question.text))
        rows = db.execute("SELECT place FROM turns WHERE turns MATCH ? ORDER BY rank LIMIT 10", (words,))
        yield [place for (place,) in rows]
    db.close()


def read_conversations(path: Path) -> list[Conversation]:
    """Read the conversations from LoCoMo's archive, or from a folder with its files."""
    if path.is_dir():
        return [_parse(item.stem, item.read_bytes()) for item in sorted(path.rglob("*.json"))]
    with zipfile.ZipFile(path) as archive:
        names = sorted(name for name in archive.namelist() if name.endswith(".json"))
        return [_parse(Path(name).stem, archive.read(name)) for name in names]


def _parse(name: str, data: bytes) -> Conversation:
    found = json.loads(data)
    numbers = sorted(int(key[8:]) for key in found if re.fullmatch(r"session_\d+", key))
    said = [
        Said(turn["dia_id"], number, _text_of(turn))
        for number in numbers
        for turn in found[f"session_{number}"]
    ]
    places = {item.place for item in said}
    questions = [
        Question(item["question"], item["category"], frozenset(known))
        for item in found["qa"]
        if item["category"] in KINDS
        and (known := places.intersection(_PLACE.findall(" ".join(item["evidence"]))))
    ]
    return Conversation(name, tuple(said), tuple(questions))


def _text_of(turn: dict[str, str]) -> str:
    caption = turn.get("blip_caption")
    return f"{turn['speaker']}: {turn['text']}{f' (shares {caption})' if caption else ''}"


def _make_shares() -> Shares:
    return Shares(defaultdict(list), defaultdict(list))
