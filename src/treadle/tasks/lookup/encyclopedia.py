"""A made-up encyclopedia in the files of a run, and the tools that search it and open its articles."""

import re
from collections.abc import Mapping, Sequence

from treadle.core.errors import ToolError
from treadle.core.registry import did_you_mean
from treadle.core.spec import PartSpec
from treadle.core.texts.documents import read_data
from treadle.sandbox.protocol import Sandbox
from treadle.tasks.draws import Draw, split
from treadle.tasks.files.materials import FIRST_NAMES, LAST_NAMES
from treadle.tools.context import ToolContext
from treadle.tools.function.decorator import tool
from treadle.tools.protocol import Tool

DATA = read_data(__package__, "lookup")
RELATIONS: Mapping[str, Mapping[str, str]] = DATA["relations"]
FOLDER = "articles/"
MAX_FOUND = 8
"""How many articles a search returns."""
_SYLLABLES, _TRADES = split(DATA["syllables"]), split(DATA["trades"])
_SIZES = (6, 9, 14)
"""How many things of each kind there are at each level."""
KINDS = ("company", "person", "town", "river")


class World:
    """The things of an encyclopedia and their relations."""

    def __init__(self, draw: Draw, level: int) -> None:
        self.draw = draw
        self.names: dict[str, list[str]] = {kind: [] for kind in KINDS}
        for kind in KINDS:
            while len(self.names[kind]) < _SIZES[level]:
                self._add(kind)
        self.facts: dict[tuple[str, str], str] = {}
        """The value of each thing's relation, by the thing and the relation."""
        for relation, entry in RELATIONS.items():
            used: set[str] = set()
            for name in self.names[entry["of"]]:
                value = self._draw_value(entry["to"], name, used)
                used.add(value)
                self.facts[name, relation] = value

    def _draw_value(self, kind: str, name: str, used: set[str]) -> str:
        if kind == "number":
            # The values of a relation differ, so that two things can be compared.
            return next(
                text for text in iter(lambda: str(self.draw.between(120, 1990)), "") if text not in used
            )
        return self.draw.pick([item for item in self.names[kind] if item != name])

    def _add(self, kind: str) -> None:
        draw = self.draw
        stem = "".join(draw.sample(_SYLLABLES, 2)).capitalize()
        name = {
            "company": f"{stem} {draw.pick(_TRADES)}",
            "person": f"{draw.pick(FIRST_NAMES)} {draw.pick(LAST_NAMES)}",
            "town": f"{stem}ton",
            "river": f"{stem}a",
        }[kind]
        if name not in self.names[kind]:
            self.names[kind].append(name)

    def files(self) -> dict[str, bytes]:
        """Return the articles, as files."""
        made = {}
        for kind in KINDS:
            for name in self.names[kind]:
                sentences = [
                    self.draw.pick(entry["sentences"]).format(value=self.facts[name, relation])
                    for relation, entry in RELATIONS.items()
                    if entry["of"] == kind
                ]
                text = f"{name} is a {kind}. {' '.join(self.draw.shuffled(sentences))}\n"
                made[f"{FOLDER}{name}.txt"] = text.encode()
        return dict(sorted(made.items()))

    def follow(self, name: str, relations: Sequence[str]) -> list[str]:
        """Return the things on the path from `name` along some relations, the last of which is the answer."""
        path = [name]
        for relation in relations:
            path.append(self.facts[path[-1], relation])
        return path


def read_relation(text: str, relation: str) -> str:
    """Return the value of a relation that an article tells. Raises: `ValueError` if it does not tell it."""
    for sentence in RELATIONS[relation]["sentences"]:
        before, _, after = sentence.partition("{value}")
        found = re.search(
            rf"(?:^|[.] ){re.escape(before)}([\w'&-]+(?: [\w'&-]+)*?){re.escape(after)}(?= |$)", text.strip()
        )
        if found is not None:
            return found[1]
    raise ValueError(f"the article does not tell the {relation}: {text!r}")


def _articles(context: ToolContext) -> tuple[Sandbox, list[str]]:
    sandbox = context.sandbox
    paths = [] if sandbox is None else [path for path in sandbox.paths() if path.startswith(FOLDER)]
    if sandbox is None or not paths:
        raise ToolError("this run has no articles; the tools of the corpus need a task of the set 'lookup'")
    return sandbox, [path.removeprefix(FOLDER).removesuffix(".txt") for path in paths]


@tool(effect="pure")
async def search_corpus(context: ToolContext, query: str) -> list[str]:
    """Return the titles of the articles that have the most words of a query, the best first, as a JSON array.

    Args:
        query: The words.
    """
    sandbox, titles = _articles(context)
    words = set(re.findall(r"\w+", query.casefold()))
    scores = {}
    for title in titles:
        own = set(re.findall(r"\w+", sandbox.read(f"{FOLDER}{title}.txt").decode().casefold()))
        # A word in the title counts more than one in the text.
        hits = len(words & own) + 2 * len(words & set(re.findall(r"\w+", title.casefold())))
        if hits:
            scores[title] = hits
    return sorted(scores, key=lambda title: (-scores[title], title))[:MAX_FOUND]


@tool(effect="pure")
async def open_article(context: ToolContext, title: str) -> str:
    """Return the text of an article.

    Args:
        title: The whole title, as search_corpus gives it.
    """
    sandbox, titles = _articles(context)
    if title not in titles:
        raise ToolError(f"there is no article {title!r}{did_you_mean(title, titles)}")
    return sandbox.read(f"{FOLDER}{title}.txt").decode()


_TOOLS: tuple[Tool, ...] = (search_corpus, open_article)


class CorpusTools:
    """The toolset `corpus`. See `Toolset`."""

    part = PartSpec(name="corpus")

    def tools(self) -> Sequence[Tool]:
        return _TOOLS


def describe(relations: Sequence[str]) -> str:
    """Return a phrase for a path of relations, such as `mayor of the birthplace of the founder`."""
    return " of the ".join([RELATIONS[relation]["asked"] for relation in reversed(relations)])


def read_path(phrase: str) -> list[str]:
    """Return the relations that a phrase of `describe` names, the first step first."""
    names = {entry["asked"]: relation for relation, entry in RELATIONS.items()}
    found, rest = [], phrase
    while rest:
        asked = next(text for text in sorted(names, key=len, reverse=True) if rest.startswith(text))
        found.append(names[asked])
        rest = rest.removeprefix(asked).removeprefix(" of the ")
    return found[::-1]
