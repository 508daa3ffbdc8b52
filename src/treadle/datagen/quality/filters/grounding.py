"""The filter of made-up statements: what a final answer states must be shown by what the conversation had
before."""

from collections.abc import Sequence

from msgspec import Struct

from treadle.core.types import Json, Message, Role, ToolSpec
from treadle.datagen.quality.doubts import DOUBTFUL, Doubt
from treadle.datagen.quality.evidence import Evidence
from treadle.datagen.quality.exchanges import answers, quote
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, FilterSettings, FilterVerdict
from treadle.datagen.quality.statements import AnswerStatement, StatementKind, find_statements
from treadle.datagen.quality.support import Support
from treadle.datagen.scenarios.kinds import is_question
from treadle.datagen.scenarios.scenario import Kind
from treadle.routing.judging.inabilities import gives_up, is_refusal

_DATA = frozenset((StatementKind.QUANTITY, StatementKind.IDENTIFIER, StatementKind.PATH))


class GroundingSettings(FilterSettings):
    """The kinds of statements that are checked."""

    numbers: bool = True
    """True to check numbers, dates, times and shares. Also allowed are roundings, other units, and what follows by
    counting, adding, comparing and averaging."""
    paths: bool = True
    """True to check paths, addresses, identifiers, versions and quoted texts."""
    names: bool = True
    """True to check capitalised words within sentences, and the words of a line `Answer: …`."""
    actions: bool = True
    """True to check claims that something was done, such as `I have saved` or `was deleted`."""
    causes: bool = True
    """True to check causes, such as `because …` or `due to …`."""
    relations: bool = True
    """True to check which record a value belongs to, what is called the largest or the first, and what is
    denied."""

    def has(self, kind: StatementKind) -> bool:
        """Return whether statements of a kind are checked."""
        return {
            StatementKind.QUANTITY: self.numbers,
            StatementKind.NAME: self.names,
            StatementKind.ACTION: self.actions,
            StatementKind.CAUSE: self.causes,
            StatementKind.ORDER: self.relations,
            StatementKind.RELATION: self.relations,
        }.get(kind, self.paths)


class Finding(Struct, frozen=True):
    """A statement of an answer, and how far it is in doubt."""

    index: int
    """The position of the answer's message."""
    statement: AnswerStatement
    doubt: Doubt

    def describe(self) -> str:
        """Return a sentence for a reason."""
        text = quote(self.statement.text)
        return f"the answer in message {self.index}: the {self.statement.kind} {text} {self.doubt.reason}"


class GroundingFilter(BuiltinFilter[GroundingSettings]):
    """What the final answers state was seen before: in the user's words, the instructions, tool results, or
    what the agent itself wrote in calls that succeeded. Values are compared after rounding, in other units
    and as words, and belong to what they are said of; claims of actions need a successful call that could
    have done them, and causes need a source. An answer with data and without any successful call is
    rejected, unless it asks or refuses. Advice, offers and code are not checked."""

    name = "grounding"
    settings_type = GroundingSettings

    async def check(self, candidate: Candidate) -> FilterVerdict:
        """See `Filter.check`."""
        findings = self.find(candidate)
        doubtful = [item for item in findings if item.doubt.degree >= DOUBTFUL]
        counts: dict[str, Json] = {"statements": len(findings), "grounded": len(findings) - len(doubtful)}
        if doubtful:
            reasons = "; ".join([item.describe() for item in doubtful[:3]])
            return self.reject(reasons, found=doubtful[0].statement.text, **counts)
        return self.accept("" if findings else "nothing is stated", **counts)

    def find(self, candidate: Candidate) -> list[Finding]:
        """Return the statements of all final answers, each with its doubt."""
        messages, tools = candidate.row.messages, candidate.row.tools
        found: list[Finding] = []
        for index in answers(messages):
            found += self._read(messages[:index], messages[index], index, tools, candidate.spec.kind)
        return found

    def _read(
        self,
        before: Sequence[Message],
        answer: Message,
        index: int,
        tools: tuple[ToolSpec, ...],
        kind: Kind | None,
    ) -> list[Finding]:
        text = answer.content
        statements = [item for item in find_statements(text) if self.settings.has(item.kind)]
        seen = Evidence(before)
        if not any(message.role is Role.TOOL for message in before):
            return self._read_unfounded(statements, seen, index, tools, text, kind)
        support = Support(seen, tools, text)
        return [Finding(index, item, support.doubt(item)) for item in statements]

    def _read_unfounded(
        self,
        statements: Sequence[AnswerStatement],
        seen: Evidence,
        index: int,
        tools: tuple[ToolSpec, ...],
        text: str,
        kind: Kind | None,
    ) -> list[Finding]:
        """Return what is in doubt in an answer before the first call: it may state what the model knows, but
        not what it has done, nor data if tools were needed."""
        if not tools:
            return []
        support = Support(seen, tools, text)
        found = [
            Finding(index, item, support.doubt(item))
            for item in statements
            if item.kind is StatementKind.ACTION
        ]
        if (
            kind in (Kind.NO_TOOL, Kind.REFUSAL, None)
            or is_question(text)
            or is_refusal(text)
            or gives_up(text)
        ):
            return found
        for item in statements:
            if item.kind in _DATA and (doubt := support.doubt(item)).degree >= DOUBTFUL:
                found.append(Finding(index, item, Doubt(doubt.degree, "is stated without a successful call")))
        return found
