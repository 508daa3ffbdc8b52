"""The filter of made-up statements: what a final answer states must be shown before it."""

from collections.abc import Iterator, Sequence
from hashlib import blake2b
from itertools import groupby
from math import log

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.tally import Charge, Tally
from treadle.core.types import Json, Message, Role, ToolSpec
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.roles import asks_about_statements
from treadle.datagen.quality.exchanges import answers, name_message, quote
from treadle.datagen.quality.protocol import (
    BuiltinFilter,
    Candidate,
    Filter,
    FilterSettings,
    FilterVerdict,
    Resources,
)
from treadle.datagen.quality.statement_judge import judge_statements
from treadle.datagen.quality.statements.doubts import Doubt, DoubtKind
from treadle.datagen.quality.statements.evidence import Evidence
from treadle.datagen.quality.statements.statement_features import StatementFeatures, weigh
from treadle.datagen.quality.statements.statements import (
    AnswerStatement,
    StatementKind,
    content_of,
    find_statements,
)
from treadle.datagen.quality.statements.support import Support
from treadle.datagen.scenarios.kinds import is_question
from treadle.datagen.scenarios.scenario import Kind
from treadle.models.protocol import Model
from treadle.routing.judging.inabilities import gives_up, is_refusal

_IMPLIED = frozenset((StatementKind.RELATION, StatementKind.ORDER, StatementKind.CLAIM))
"""The kinds that are counted only if they are in doubt: nearly every sentence has one."""
_DATA = frozenset((StatementKind.QUANTITY, StatementKind.IDENTIFIER, StatementKind.PATH))


DOUBTFUL = 0.14
"""From this degree of doubt on, a statement counts as untrue unless a judge says otherwise."""
CERTAIN = 0.995
"""From this degree of doubt on, a statement is untrue without asking a judge."""
SUPPORT = 0.25
"""How much less a statement is doubted that something supports."""
WORDING = 0.36
"""How much less a sentence is doubted as a whole: words differ more between writers than what figures, names and
paths look like, so that its degree says less on texts that the weights do not know."""
EVIDENCE = 2.9
"""How much one verdict of a judge changes the log odds that a sentence is untrue: as if it were right in 95 %."""
TRUST = 0.7
"""How far the log odds of the rules are trusted, on texts that their weights do not know."""
DECIDED = 5.0
"""From these log odds on, the judge is not asked again."""
_LEAST_ODDS = -4.6
_REMEMBERED = 256
"""How many answers are remembered: a dialogue is checked after each turn, and its older answers do not change."""
_DENIED = Doubt(DoubtKind.DENIED, "is not shown, the judge says", degree=1.0)


class GroundingSettings(FilterSettings):
    """The kinds of statements that are checked."""

    numbers: bool = True
    """True to check numbers, dates, times and shares, also those in words. Also allowed are roundings,
    other units, and what follows by
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
    sentences: bool = True
    """True to check whether sentences speak of something that was seen."""

    def has(self, kind: StatementKind) -> bool:
        """Return whether statements of a kind are checked."""
        return {
            StatementKind.QUANTITY: self.numbers,
            StatementKind.SHARE: self.numbers,
            StatementKind.NAME: self.names,
            StatementKind.ACTION: self.actions,
            StatementKind.CAUSE: self.causes,
            StatementKind.ORDER: self.relations,
            StatementKind.RELATION: self.relations,
            StatementKind.CLAIM: self.sentences,
        }.get(kind, self.paths)


class Finding(Struct, frozen=True):
    """A statement of an answer, and how far it is in doubt."""

    index: int
    """The position of the answer's message."""
    statement: AnswerStatement
    doubt: Doubt
    features: frozenset[str] = frozenset()
    """What the weights of statements know about it."""

    @property
    def is_said(self) -> bool:
        """True if it counts as a statement: nearly every sentence implies one, and advice states little."""
        is_weak = self.statement.kind in _IMPLIED or self.statement.is_advice
        return self.doubt.degree >= DOUBTFUL or not is_weak

    def describe(self) -> str:
        """Return a sentence for a reason."""
        return f"the {self.statement.kind} {quote(self.statement.text)} {self.doubt.reason}"


def lenience(kind: StatementKind, doubt: Doubt) -> float:
    """Return how much less a statement is doubted than its weights say."""
    return (0.0 if doubt.is_open else SUPPORT) + (WORDING if kind is StatementKind.CLAIM else 0.0)


class GroundingFilter(BuiltinFilter[GroundingSettings]):
    """What the final answers state was seen before: in the user's words, the instructions, tool results, or
    what the agent itself wrote in calls that succeeded. Figures are read as they are written, in digits or
    words, as fractions, ranges, dates or times of day, in English, Norwegian and German; they are compared
    after rounding and in other units, and belong to what they are said of; claims of actions need a
    successful call that could have done them, and causes need a source. An answer with data and without any
    successful call is rejected, unless it asks or refuses. What
    the rules cannot decide is weighed by what kind of sentence it stands in. Code is not checked."""

    name = "grounding"
    reads_turns = True
    settings_type = GroundingSettings

    def __init__(self, settings: GroundingSettings, resources: Resources) -> None:
        super().__init__(settings, resources)
        self._read: dict[bytes, list[Finding]] = {}
        """The statements of the answers that were read last, by a hash of the conversation up to the answer."""

    async def check(self, candidate: Candidate) -> FilterVerdict:
        findings = self.find(candidate)
        limit = CERTAIN if has_judge(self.resources) else DOUBTFUL
        doubtful = [item for item in findings if item.doubt.degree >= limit]
        said = len([item for item in findings if item.is_said])
        counts: dict[str, Json] = {"statements": said, "grounded": said - len(doubtful)}
        if doubtful:
            found = doubtful[0].statement.text
            indexes = [item.index for item in doubtful]
            return self.reject_answer(
                candidate, indexes, explain(candidate.row.messages, doubtful), found=found, **counts
            )
        return self.accept("" if findings else "nothing is stated", **counts)

    def find(self, candidate: Candidate) -> list[Finding]:
        """Return the statements of all final answers, each with its doubt."""
        return self.read(candidate.row.messages, candidate.row.tools, candidate.spec.kind)

    def read(
        self, messages: Sequence[Message], tools: tuple[ToolSpec, ...], kind: Kind | None
    ) -> list[Finding]:
        """Return the statements of all final answers of a conversation of the planned `kind`. Each answer is read
        once, however often the conversation goes on."""
        known = blake2b(msgspec.json.encode((tools, kind)))
        found: list[Finding] = []
        newest = set(answers(messages))
        for index, message in enumerate(messages):
            known.update(msgspec.json.encode(message))
            if index in newest:
                key = known.digest()
                if key not in self._read:
                    if len(self._read) >= _REMEMBERED:
                        self._read.clear()
                    self._read[key] = self._read_answer(messages[: index + 1], tools, kind)
                found += self._read[key]
        return found

    def _read_answer(
        self, messages: Sequence[Message], tools: tuple[ToolSpec, ...], kind: Kind | None
    ) -> list[Finding]:
        """Return the statements of the answer that is the last of the messages."""
        *before, answer = messages
        text, seen = answer.content, Evidence(before)
        statements = [item for item in find_statements(text) if self.settings.has(item.kind)]
        support = Support(seen, tools, text)
        if any(message.role is Role.TOOL for message in before):
            pairs = [(item, support.doubt(item)) for item in statements]
        else:
            pairs = list(_doubt_unfounded(statements, support, tools, text, kind))
        features = StatementFeatures(seen, pairs)
        found: list[Finding] = []
        for statement, doubt in pairs:
            known = features.of(statement, doubt)
            is_sure = doubt.is_sure and not (statement.is_advice and doubt.kind is DoubtKind.UNDONE)
            degree = 1.0 if is_sure else weigh(known)
            degree = degree if is_sure else max(0.0, degree - lenience(statement.kind, doubt))
            found.append(Finding(len(before), statement, replace(doubt, degree=degree), known))
        return found


def _doubt_unfounded(
    statements: Sequence[AnswerStatement],
    support: Support,
    tools: tuple[ToolSpec, ...],
    text: str,
    kind: Kind | None,
) -> Iterator[tuple[AnswerStatement, Doubt]]:
    """Yield what is in doubt in an answer before the first call: it may state what the model knows, but not what
    it has done, nor data if tools were needed."""
    is_free = (
        kind in (Kind.NO_TOOL, Kind.REFUSAL, None)
        or is_question(text, at_end=True)
        or is_refusal(text)
        or gives_up(text)
    )
    for item in statements if tools else ():
        if item.kind is StatementKind.ACTION:
            yield item, support.doubt(item)
        elif item.kind in _DATA and not is_free and not item.is_advice and support.doubt(item).is_open:
            yield item, Doubt(DoubtKind.UNCALLED, "is stated without a successful call")


def explain(messages: Sequence[Message], findings: Sequence[Finding]) -> str:
    """Return the first findings in the answers of a conversation as a reason, each answer named once."""
    told: dict[int, list[str]] = {}
    for item in findings[:3]:
        told.setdefault(item.index, []).append(item.describe())
    return "; ".join([f"{name_message(messages, index)}: {'; '.join(said)}" for index, said in told.items()])


def has_judge(resources: Resources) -> bool:
    """Return whether a judge is asked about what the rules cannot decide."""
    return resources.judge is not None and asks_about_statements(resources.config)


class AskedSentence(Struct, frozen=True):
    """A sentence of an answer that a judge is asked about."""

    index: int
    """The position of the answer's message."""
    findings: tuple[Finding, ...]
    """What the sentence states, with the doubts of the rules."""

    @property
    def worst(self) -> Finding:
        """The statement that is most in doubt."""
        return max(self.findings, key=lambda item: item.doubt.degree)

    @property
    def is_doubted(self) -> bool:
        """True if the rules alone would reject the sentence."""
        return self.worst.doubt.degree >= DOUBTFUL

    @property
    def is_sure(self) -> bool:
        """True if the rules have found all of its data, and doubt nothing."""
        return not self.worst.doubt.degree and any(item.statement.kind in _DATA for item in self.findings)

    def write(self, context: str = "") -> AnswerStatement:
        """Return the sentence as a statement, beside a text before it."""
        said = self.findings[0].statement
        sentence = said.sentence.strip()
        return replace(said, text=sentence, sentence=f"{context} {sentence}".strip())

    def contexts(self, messages: Sequence[Message]) -> list[str]:
        """Return the texts to show the judge: none, the sentence before, the request, and both."""
        before = self.findings[0].statement.before.rpartition("\n")[0].rpartition("\n")[2].strip()
        asked = [item.content for item in messages[: self.index] if item.role is Role.USER]
        request = next(reversed(asked), "").strip()
        return list(dict.fromkeys(["", before, request, f"{request} {before}".strip()]))

    @property
    def odds(self) -> float:
        """The logarithm of the odds that the sentence is untrue, by the rules alone."""
        degree = min(max(self.worst.doubt.degree, 0.0), 0.99)
        return max(_LEAST_ODDS, TRUST * log(degree / (1 - degree))) if degree else _LEAST_ODDS


class JudgedAnswer(Struct, frozen=True):
    """What a judge said about one answer."""

    denied: tuple[Finding, ...]
    """What it does not see shown."""
    spent: Charge
    sentences: int = 0
    """How many sentences it has judged."""
    controls: int = 0
    """How many of them the rules are sure of."""
    agreed: int = 0
    """How many of those it has confirmed."""


class StatementFilter(Filter[FilterSettings]):
    """The judge model says that the conversation shows each sentence of the answers that states something, unless
    the rules of `grounding` reject the sample for certain. It sees the sentences of one answer beside the requests,
    calls and results before it. It is used by default if `models` names a model that is not built in. The doubt of
    the rules and the judge's verdicts are weighed together: until they decide, it is asked again, at most four
    times, beside the sentence before and the request. The report says how many of the sentences that the rules are
    sure of the judge confirmed."""

    name = "statements"
    reads_turns = True
    cost = 2

    def __init__(self, settings: FilterSettings, resources: Resources) -> None:
        super().__init__(settings, resources)
        given = resources.config.quality.filters.get("grounding")
        rules = GroundingSettings.model_validate(given if isinstance(given, dict) else {})
        self._rules = GroundingFilter(rules, resources)

    @classmethod
    def is_on(cls, config: GenerationConfig) -> bool:
        return asks_about_statements(config)

    async def check(self, candidate: Candidate) -> FilterVerdict:
        """See `Filter.check`. Raises: `ServerError` if the judge could not be asked."""
        model = self.resources.judge
        if model is None:
            return self.accept("there is no model for the judge")
        asked = _questions(self._rules.find(candidate))
        if not asked:
            return self.accept("nothing is stated")
        tally, sentences = Tally(), 0
        counts: dict[str, int] = {"controls": 0, "agreed": 0}
        found: FilterVerdict | None = None
        for index, items in groupby(asked, key=lambda item: item.index):
            shown = candidate.row.messages[: index + 1]
            judged = await self._judge(model, candidate, shown, list(items))
            tally.add(judged.spent)
            sentences += judged.sentences
            counts = {
                "controls": counts["controls"] + judged.controls,
                "agreed": counts["agreed"] + judged.agreed,
            }
            if judged.denied:
                indexes = [item.index for item in judged.denied]
                reason = explain(candidate.row.messages, judged.denied)
                found = self.reject_answer(candidate, indexes, reason, **counts)
                break
        if found is None:
            reason = f"the judge confirmed {sentences} sentences"
            if not sentences:
                reason = "the judge gave no verdict for each sentence, and the rules doubt none"
            found = self.accept(reason, **counts)
        return replace(found, usage=tally.usage, cost_usd=tally.cost_usd)

    async def _judge(
        self, model: Model, candidate: Candidate, shown: Sequence[Message], asked: list[AskedSentence]
    ) -> JudgedAnswer:
        """Ask the judge about the sentences of the last of the messages that are `shown`. It does not see what
        came later, so that an answer is judged once, however the conversation goes on."""
        name = self.resources.config.name
        first = await judge_statements(model, candidate, shown, [item.write() for item in asked], name)
        tally = Tally()
        tally.add(Charge(first.usage, first.cost_usd))
        if first.are_shown is None:
            doubted = [item.worst for item in asked if item.is_doubted]
            return JudgedAnswer(tuple(doubted), Charge(tally.usage, tally.cost_usd))
        controls = [is_shown for item, is_shown in zip(asked, first.are_shown, strict=True) if item.is_sure]
        odds = {item: item.odds for item in asked}
        judged, number = first, 1
        while judged.are_shown is not None:
            for item, is_shown in zip(asked, judged.are_shown, strict=True):
                odds[item] += -EVIDENCE if is_shown else EVIDENCE
            contexts = {item: item.contexts(shown) for item in asked}
            asked = [item for item in asked if abs(odds[item]) < DECIDED and number < len(contexts[item])]
            if not asked:
                break
            said, number = [item.write(contexts[item][number]) for item in asked], number + 1
            judged = await judge_statements(model, candidate, shown, said, name, number=number)
            tally.add(Charge(judged.usage, judged.cost_usd))
        denied = [
            replace(item.worst, statement=item.write(), doubt=_DENIED) for item in odds if odds[item] > 0
        ]
        return JudgedAnswer(
            denied=tuple(denied),
            spent=Charge(tally.usage, tally.cost_usd),
            sentences=len(odds),
            controls=len(controls),
            agreed=sum(controls),
        )


def _questions(findings: Sequence[Finding]) -> list[AskedSentence]:
    """Return the sentences that state something, each with all that it states."""
    found: dict[tuple[int, str], list[Finding]] = {}
    for item in findings:
        found.setdefault((item.index, item.statement.sentence), []).append(item)
    return [
        AskedSentence(index, tuple(items))
        for (index, sentence), items in found.items()
        if any(item.is_said for item in items) or content_of(sentence)
    ]
