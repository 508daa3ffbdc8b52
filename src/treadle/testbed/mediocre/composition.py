"""The composition of an answer: which remarks it has, in whose voice, and which of them is a lie."""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from treadle.tasks.draws import Draw
from treadle.testbed.mediocre.figures import FIGURES, rewrite
from treadle.testbed.mediocre.observations import Observed
from treadle.testbed.mediocre.remarks import Remark, other_name, other_path, remarks_of
from treadle.testbed.mediocre.voice import Line, Voice, draw_voice, lay_out, rows_of, say
from treadle.testbed.mediocre.wants import Focus

_SORTS = {"sum": "total", "max": "extreme"}
_BRIEF = ("quote", "names", "some_files", "failed")
"""The sorts of remarks that no answer says again at its end."""
_FIGURES = ("value", "other", "share", "count")
"""The values of remarks that are figures."""


class Falsehood(Struct, frozen=True):
    """The lie in an answer."""

    kind: str
    """One of `kinds` in `figures.toml`."""
    sentence: str
    """The sentence, or the row of a table, as it stands in the answer."""
    truth: str
    """The value that would have been true; empty if nothing is known about it."""
    claimed: tuple[str, ...] = ()
    """The false values in the sentence; empty if all of it is false."""


class Composed(Struct, frozen=True):
    """An answer, and what is untrue in it."""

    text: str
    falsehood: Falsehood | None = None


def compose(seen: Observed, texts: str, focus: Sequence[Focus], kinds: Sequence[str], draw: Draw) -> Composed:
    """Return an answer about what was seen.

    `kinds` are the kinds of lie to try, the most wanted first; the answer is honest if it is empty, or if the
    results allow none of them.
    """
    voice = draw_voice(texts, seen, draw)
    low, high = voice.phrases.get("lengths", FIGURES["lengths"])[voice.style]
    found = remarks_of(seen, voice.phrases, draw)
    chosen = _choose(found, focus, draw.between(low, high))
    lie = _lie(found, chosen, kinds, seen, draw)
    remarks = [_rewrite(remark, voice, draw) for remark in lie.remarks]
    lines = [say(remark, voice, draw) for remark in remarks]
    if lie.kind in FIGURES["extra_lies"]:
        fields = {
            "name": other_name(seen.said, draw),
            "path": other_path(seen.said, draw, voice.phrases),
            "percent": str(draw.between(4, 60)),
            "number": str(draw.between(1000, 9000)),
        }
        position = draw.between(1, len(lines)) if "layouts" in voice.phrases else len(lines)
        lines.insert(position, Line(draw.pick(voice.phrases["lies"][lie.kind]).format_map(fields)))
        lie = replace(lie, position=position)
    true = [remark for remark in lie.remarks if not remark.is_false and remark.sort not in _BRIEF]
    if "recaps" in voice.phrases and len(lines) > 2 and true and draw.chance(0.35):
        again = say(_rewrite(draw.pick(true), voice, draw), voice, draw).text
        lines.append(Line(draw.pick(voice.phrases["recaps"]["all"]).format(text=again)))
    text = lay_out(lines, voice, seen, draw)
    if not lie.kind:
        return Composed(text)
    line = lines[lie.position]
    # A connecting word changes the first letter.
    plain = line.text.strip()
    said = [plain, plain[:1].lower() + plain[1:], *rows_of(line, voice.phrases)]
    sentence = next(item for item in said if item in text)
    claimed = (
        () if lie.kind in FIGURES["extra_lies"] else tuple(remarks[lie.position].twists[0].changed.values())
    )
    return Composed(text, Falsehood(lie.kind, sentence, lie.truth, claimed))


def _rewrite(remark: Remark, voice: Voice, draw: Draw) -> Remark:
    """Return a remark with its figures, and other fields, in other forms, if the split has some."""
    styles = voice.phrases.get("figures")
    if styles is None:
        return remark
    others = {name for rule in styles["rewrites"] for name in rule.get("fields", "").split()}
    figures = {
        name: rewrite(text, remark.sort, styles, draw, "" if name in _FIGURES else name)
        for name, text in remark.values.items()
        if name in others or (name in _FIGURES and remark.sort != "state")
    }
    values = {**remark.values, **figures}
    changed = {name: values[name] for name in (remark.twists[0].changed if remark.is_false else ())}
    twists = (replace(remark.twists[0], changed=changed),) if remark.is_false else remark.twists
    return replace(remark, values=values, twists=twists)


def _choose(found: Sequence[Remark], focus: Sequence[Focus], count: int) -> list[Remark]:
    """Return the remarks that are about the focus, and others."""
    first = [next((item for item in found if _is_about(item, text)), None) for text in focus]
    chosen = [item for item in first if item is not None] or list(found[:1])
    for item in found:
        if len(chosen) >= count:
            break
        if _topic_of(item) not in map(_topic_of, chosen):
            chosen.append(item)
    return chosen


def _topic_of(remark: Remark) -> tuple[str, str, str, str]:
    values = remark.values
    return remark.sort, values.get("label", ""), values.get("owner", ""), values.get("item", "")


def _is_about(remark: Remark, focus: Focus) -> bool:
    if focus.owner and focus.owner != remark.values.get("owner"):
        return False
    if focus.sort:
        return remark.focus == focus.field and remark.sort == _SORTS[focus.sort]
    return focus.field in (remark.focus, remark.values.get("things"))


class _Lie(Struct, frozen=True):
    """The remarks of an answer with the lie in them."""

    remarks: Sequence[Remark]
    kind: str = ""
    position: int = -1
    """The place of the lie; a lie with a sentence of its own is put between the others afterwards."""
    truth: str = ""


def _lie(
    found: Sequence[Remark], chosen: Sequence[Remark], kinds: Sequence[str], seen: Observed, draw: Draw
) -> _Lie:
    """Return the chosen remarks with the first possible lie among them."""
    for kind in kinds:
        if kind in FIGURES["extra_lies"]:
            return _Lie(chosen, kind)
        for remark in [*chosen, *found]:
            fitting = [twist for twist in remark.twists if twist.kind == kind]
            if fitting:
                false = remark.twist(draw.pick(fitting))
                position = chosen.index(remark) if remark in chosen else len(chosen) - 1
                said = [*chosen[:position], false, *chosen[position + 1 :]]
                return _Lie(said, kind, position, remark.truth)
    return _Lie(chosen)
