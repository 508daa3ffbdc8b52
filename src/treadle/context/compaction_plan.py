"""The plan of a compaction: which results are cut, which messages are summarised, and which stay.

A plan is a pure function of the messages and their sizes. What the model can recall or read again is cut first:
memories that were recalled for earlier turns, then old results. Then old turns are summarised. At last the longest
of the messages and results that are left become excerpts. The system message, the task and the message of the open
turn stay, and no call is separated from its result.
"""

from collections.abc import Iterator, Mapping, Sequence, Set
from math import inf

from msgspec import Struct
from msgspec.structs import replace

from treadle.context.compaction_summary import ContextSummary, is_summary, write_summary
from treadle.core.parts import describe
from treadle.core.prompts.estimates import weigh, weigh_message, weigh_part
from treadle.core.prompts.prompting import forget, take_excerpt
from treadle.core.types import Artifact, Message, Role
from treadle.tools.read_again import READ_MESSAGE, READ_RESULT, cut_out, cut_parts

_CHEAP_SHARE = 0.5
"""Cutting results alone suffices if it gets to this share of the goal. Otherwise old turns would soon fill the
rest, and each compaction costs the provider's cache."""
_LEAST_CHARS = 400
"""Shorter results stay as they are."""
_LEAST_EXCERPT_CHARS = 200
_EXCERPTS_SHARE = 0.5
"""Nothing is summarised because of long messages if all messages then have this share of the prompt."""
_LEAST_SAVED_SHARE = 0.05
"""A plan that saves less is not worth it."""
_LEAST_ASKED_SHARE = 0.01
"""The same for a plan that somebody asked for."""
_SHORTEST_SUMMARY = weigh_message(write_summary(ContextSummary()))


class Sizes(Struct, frozen=True):
    """The sizes that a plan tries to reach, in tokens."""

    tools: float
    """The size of the tools, which are in every prompt."""
    goal: float
    """The size of the compacted prompt, if it can be reached without removing newer turns and results."""
    enough: float
    """The size above which newer turns are removed too."""
    most: float
    """The size above which the longest messages and results become excerpts."""
    summary: float
    """The longest summary."""


class Seen(Struct, frozen=True):
    """The messages that the model sees, and what is known about them."""

    messages: Sequence[Message]
    tokens: Sequence[float]
    """The size of each message."""
    turn_at: int
    """The position of the message that began the newest turn."""
    is_open: bool
    """True if that turn has not ended."""
    recalled: Mapping[int, int]
    """How many characters of recalled memories messages begin with, by position."""
    readers: Set[str] = frozenset()
    """The names of the tools that read results and messages again, if the model has them or can be offered them."""
    numbers: Mapping[int, int] = {}
    """The numbers of messages of the user in the whole transcript, from 1, by position."""


class Plan(Struct, frozen=True):
    """The changes that a compaction makes."""

    messages: int = 0
    """How many messages, from the first, are replaced."""
    head: tuple[Message, ...] = ()
    """The messages that stay, among those that are replaced: the system message and the task."""
    earlier: Message | None = None
    """The summary of an earlier compaction, if it is among the messages that are replaced."""
    old: tuple[Message, ...] = ()
    """The messages that are summarised or dropped."""
    asked: tuple[Message, ...] = ()
    """The message of the open turn, if it is among those that are replaced."""
    shortened: dict[str, str] = {}
    """The results that are cut: by call id, the line that the model sees in place of each."""
    excerpts: dict[int, str] = {}
    """The messages that become excerpts: by position, the text that the model sees."""
    kept_parts: dict[int, int] = {}
    """For excerpts that name files which are left out: by position, how many of the message's parts stay."""
    forgotten: tuple[int, ...] = ()
    """The positions of messages that lose their recalled memories."""

    @property
    def is_empty(self) -> bool:
        """True if the plan changes nothing."""
        return not (self.messages or self.shortened or self.excerpts or self.forgotten)


def make_plan(
    seen: Seen, sizes: Sizes, keep_turns: int, *, is_asked: bool = False, is_refused: bool = False
) -> Plan:
    """Return the plan that loses least and is small enough; the smallest one if none is, and an empty one if none
    would save anything.

    `is_asked` is true if somebody asked for the compaction: then everything before the newest turns is summarised,
    however much room there is, or only results are cut if no summary could be shorter. `is_refused` is true if the
    server refused the prompt: then long messages become excerpts although the prompt may not fit. Otherwise they
    stay in that case, since the sizes are estimates.
    """
    parts = _Parts(seen, keep_turns)
    cut, plan = parts.begin, Plan()
    for cut, kept_steps, limit in _choices(parts, sizes, keep_turns):
        if is_asked and cut == parts.begin and parts.preferred > parts.begin:
            continue
        plan = parts.plan(cut, kept_steps)
        if parts.size(plan, cut, sizes) <= limit or is_asked:
            break
    if parts.size(plan, cut, sizes) > sizes.most:
        # Where single messages are too long, others need not go for them.
        choices = [(_EXCERPTS_SHARE * sizes.enough, parts.begin, sizes.most), (0.0, cut, sizes.most)]
        if is_refused:
            choices.append((-inf, cut, parts.size(plan, cut, sizes)))
        for least, mildest, limit in choices:
            squeezed = parts.squeeze(mildest, sizes, least)
            if squeezed is not None and parts.size(squeezed, mildest, sizes) <= limit:
                cut, plan = mildest, squeezed
                break
    before = sizes.tools + sum(seen.tokens)
    most = (1 - (_LEAST_ASKED_SHARE if is_asked else _LEAST_SAVED_SHARE)) * before
    if not is_asked:
        return plan if parts.size(plan, cut, sizes) < most else Plan()
    sizes = replace(sizes, summary=parts.ratio * _SHORTEST_SUMMARY)
    if parts.size(plan, cut, sizes) >= most:
        cut, plan = parts.begin, parts.plan(parts.begin, max(1, keep_turns))
    return plan if parts.size(plan, cut, sizes) < most else Plan()


def plan_whole(messages: Sequence[Message]) -> Plan:
    """Return the plan that keeps the system message and the messages of the user, and has one summary of the whole
    conversation after them."""
    earlier = [message for message in messages if is_summary(message)][-1:]
    told = [message for message in messages if message.role is not Role.SYSTEM and message not in earlier]
    return Plan(
        messages=len(messages),
        head=tuple([it for it in messages if it.role in (Role.SYSTEM, Role.USER) and not is_summary(it)]),
        earlier=earlier[0] if earlier else None,
        old=tuple(told),
    )


def _choices(parts: "_Parts", sizes: Sizes, keep_turns: int) -> Iterator[tuple[int, int, float]]:
    """Yield how far plans may go, mildest first: kept messages, steps that keep results, size that suffices."""
    steps = max(1, keep_turns)
    yield parts.begin, steps, _CHEAP_SHARE * sizes.goal if parts.preferred > parts.begin else sizes.goal
    yield parts.preferred, steps, sizes.goal
    yield parts.preferred, steps, sizes.enough
    for cut in [item for item in parts.cuts if item >= parts.preferred]:
        yield cut, 1, sizes.enough
    yield parts.cuts[-1], 1, sizes.most


class _Parts:
    def __init__(self, seen: Seen, keep_turns: int) -> None:
        messages = seen.messages
        self._seen = seen
        count = len(messages)
        estimated = sum([weigh_message(message) for message in messages])
        self.ratio = max(0.01, sum(seen.tokens) / max(1.0, estimated))
        """The factor by which the sizes of messages were corrected, from what the server counted."""
        at = int(count > 0 and messages[0].role is Role.SYSTEM)
        at += int(count > at and messages[at].role is Role.USER and not is_summary(messages[at]))
        self._head = at
        """How many messages at the beginning always stay."""
        self.begin = at + int(count > at and is_summary(messages[at]))
        """Where the messages begin that can be replaced."""
        turns = [index for index in range(self.begin, seen.turn_at + 1) if self._begins_turn(index)]
        newest = max((index for index in range(count) if messages[index].role is Role.ASSISTANT), default=0)
        steps = [
            index
            for index in range(max(self.begin, seen.turn_at + 1), newest + 1)
            if messages[index].role is Role.ASSISTANT
        ]
        if not seen.is_open:
            steps = [count]
            turns = turns if keep_turns else []
        self.cuts = [self.begin, *turns, *steps] if turns[:1] != [self.begin] else [*turns, *steps]
        """The positions at which kept messages may begin, in order."""
        whole = turns[-max(1, keep_turns) :] if len(turns) >= max(1, keep_turns) else []
        self.preferred = whole[0] if whole else self.begin
        """Where the newest turns begin, which stay if they can."""
        if not seen.is_open and not keep_turns:
            self.preferred = count

    def _begins_turn(self, index: int) -> bool:
        messages = self._seen.messages
        if index == self._seen.turn_at:
            return True
        return messages[index].role is Role.USER and messages[index - 1].role is Role.ASSISTANT

    def plan(self, cut: int, kept_steps: int, *, is_last: bool = False) -> Plan:
        """Return the plan whose kept messages begin at `cut`, and in which the newest steps keep their results. If
        it `is_last`, when nothing else makes the prompt fit, what was recalled for the open turn goes too."""
        seen, messages = self._seen, self._seen.messages
        is_whole = cut == self.begin
        old_blocks = [at for at in seen.recalled if at != seen.turn_at or not seen.is_open or is_last]
        forgotten = [at for at in old_blocks if is_whole or at >= cut]
        shortened = {
            message.call_id: write_line(message, can_read=READ_RESULT in seen.readers)
            for message in self._old_results(cut, kept_steps)
            if message.call_id is not None
        }
        if is_whole:
            return Plan(shortened=shortened, forgotten=tuple(sorted(forgotten)))
        asked_at = seen.turn_at if seen.is_open and self.begin <= seen.turn_at < cut else None
        old = [messages[at] for at in range(self.begin, cut) if at != asked_at]
        return Plan(
            messages=cut,
            head=tuple([self._forget_if(at, old_blocks) for at in range(self._head)]),
            earlier=messages[self._head] if self.begin > self._head else None,
            old=tuple(old),
            asked=() if asked_at is None else (self._forget_if(asked_at, old_blocks),),
            shortened=shortened,
            forgotten=tuple(sorted(forgotten)),
        )

    def squeeze(self, cut: int, sizes: Sizes, least: float) -> Plan | None:
        """Return the plan whose kept messages begin at `cut`, with excerpts of the longest messages and results;
        `None` if the messages and results would have less than `least` tokens."""
        plan, seen = self.plan(cut, 1, is_last=True), self._seen
        kept = {*range(self._head), *range(cut, len(seen.messages)), *((seen.turn_at,) if plan.asked else ())}
        texts = {
            at: forget(message, seen.recalled.get(at, 0))
            for at in sorted(kept)
            if (message := seen.messages[at]).role is Role.USER
            or (message.role is Role.TOOL and message.call_id not in plan.shortened)
        }
        weights = {at: weigh_message(text) for at, text in texts.items()}
        room = sizes.enough - (self.size(plan, cut, sizes) - self.ratio * sum(weights.values()))
        if room < least:
            return None
        room /= self.ratio
        kept_parts: dict[int, int] = {}
        # The files of earlier messages go first: the newest ones are what the turn is about.
        for at in [at for at in texts if texts[at].parts and not (seen.is_open and at == seen.turn_at)]:
            if sum(weights.values()) > room:
                kept_parts[at] = 0
                weights[at] -= _weigh_parts(texts[at].parts)
        share = _find_share(list(weights.values()), room)
        excerpts, shortened = {}, dict(plan.shortened)
        for at, message in texts.items():
            text, count = self._shrink(at, message, share, kept_parts.get(at))
            if count == len(message.parts) and len(text) >= len(message.content):
                continue
            if message.role is Role.TOOL and message.call_id is not None:
                shortened[message.call_id] = text
                continue
            excerpts[at] = text
            if message.parts:
                kept_parts[at] = count
        kept_parts = {at: kept for at, kept in kept_parts.items() if at in excerpts}
        head = [take_excerpt(item, excerpts.get(at), kept_parts.get(at)) for at, item in enumerate(plan.head)]
        at = seen.turn_at
        asked = [take_excerpt(item, excerpts.get(at), kept_parts.get(at)) for item in plan.asked]
        return replace(
            plan,
            head=tuple(head),
            asked=tuple(asked),
            shortened=shortened,
            excerpts=excerpts,
            kept_parts=kept_parts,
        )

    def _shrink(self, at: int, message: Message, share: float, kept: int | None) -> tuple[str, int]:
        """Return the text of a message in a prompt in which it may have `share` tokens, and how many of its parts
        stay, at most `kept` of them. The text names the others."""
        parts, weight = message.parts[:kept], weigh(message.content)
        is_small = weight + _weigh_parts(parts) <= share
        # Files leave at least half of the share to the text.
        left = inf if is_small else max(0.0, share - min(weight, share / 2))
        count = max([n for n in range(len(parts) + 1) if _weigh_parts(parts[:n]) <= left])
        # A result is shown without its parts as soon as any of it is cut.
        if message.role is Role.TOOL and not (is_small and count == len(message.parts)):
            count = 0
        text, allowed = message.content, share - _weigh_parts(parts[:count])
        if weight > allowed and len(text) > _LEAST_CHARS:
            chars = max(_LEAST_EXCERPT_CHARS, int(len(text) * allowed / weight))
            shorter = self._excerpt(at, message, chars)
            text = shorter if len(shorter) < len(text) else text
        if count < len(message.parts):
            text += self._name_parts(at, message, message.parts[count:])
        return text, count

    def _name_parts(self, at: int, message: Message, parts: Sequence[Artifact]) -> str:
        """Return the line about files of a message that the model is not shown."""
        number = self._seen.numbers.get(at)
        can_read = message.role is Role.USER and READ_MESSAGE in self._seen.readers and number is not None
        start = len(message.content)
        how = f"{READ_MESSAGE}({number}, start={start}) shows the text files among them, " * can_read
        return cut_parts(
            [f"{describe(part)} of {part.size_bytes or 0:,} bytes" for part in parts],
            f"{how}the user can send a file again, with fewer others",
        )

    def _excerpt(self, at: int, message: Message, chars: int) -> str:
        """Return the beginning and the end of a message, and a line that says how to read the rest."""
        how, readers = "", self._seen.readers
        if message.name in (READ_RESULT, READ_MESSAGE):
            how = "; read a shorter part"
        elif message.role is Role.TOOL and READ_RESULT in readers:
            how = f'; {READ_RESULT}("{message.call_id}", start={{start}}) shows them'
        elif READ_MESSAGE in readers and at in self._seen.numbers:
            how = f"; {READ_MESSAGE}({self._seen.numbers[at]}, start={{start}}) shows them"
        elif message.role is Role.USER:
            how = "; they cannot be read here, but the user can send a part of them as a shorter message"
        return cut_out(message.content, chars, how)

    def _forget_if(self, at: int, old_blocks: list[int]) -> Message:
        message = self._seen.messages[at]
        return forget(message, self._seen.recalled[at]) if at in old_blocks else message

    def _old_results(self, cut: int, kept_steps: int) -> Iterator[Message]:
        """Yield the results from `cut` on that are older than the newest steps, and not cut yet."""
        messages = self._seen.messages
        left = kept_steps
        for at in range(len(messages) - 1, cut - 1, -1):
            message = messages[at]
            if message.tool_calls:
                left -= 1
            elif (
                left <= 0
                and message.role is Role.TOOL
                and (message.parts or len(message.content) > _LEAST_CHARS)
            ):
                yield message

    def size(self, plan: Plan, cut: int, sizes: Sizes) -> float:
        """Return the tokens of the prompt after `plan`."""
        seen = self._seen
        start = 0 if cut == self.begin else cut
        total = sizes.tools + sum(seen.tokens[start:])
        if start:
            total += sum(seen.tokens[: self._head]) + sizes.summary
            total += seen.tokens[seen.turn_at] if plan.asked else 0.0
        for at, text in plan.excerpts.items():
            parts = seen.messages[at].parts[: plan.kept_parts.get(at)]
            total += self.ratio * (weigh(text) + _weigh_parts(parts)) - seen.tokens[at]
        for at in [item for item in plan.forgotten if item not in plan.excerpts]:
            total -= seen.tokens[at] * seen.recalled[at] / max(1, len(seen.messages[at].content))
        if plan.shortened:
            for at in range(start, len(seen.messages)):
                line = plan.shortened.get(seen.messages[at].call_id or "")
                if line is not None and seen.messages[at].role is Role.TOOL:
                    total -= seen.tokens[at] - self.ratio * weigh(line)
        return total


def _weigh_parts(parts: Sequence[Artifact]) -> float:
    return sum([weigh_part(part) for part in parts])


def _find_share(weights: Sequence[float], room: float) -> float:
    """Return the size that no text may exceed so that all of them fit into `room`."""
    left = sorted(weights)
    while left and left[0] * len(left) <= room:
        room -= left.pop(0)
    return room / len(left) if left else float("inf")


def write_line(message: Message, *, can_read: bool) -> str:
    """Return the line that stands for a result that was cut."""
    line = f"[result of {message.name} cut: {len(message.content):,} characters"
    if message.parts:
        line += f" and {len(message.parts)} attached file{'s' * (len(message.parts) > 1)}"
    return f'{line}; {READ_RESULT}("{message.call_id}") shows it]' if can_read else f"{line}]"
