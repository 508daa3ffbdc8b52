"""The baseline of the benchmark `judging`: keyword rules as they are common, each over the whole message.

They are a small implementation of what persona-runtime 0.1.0 is described to do: phrases with vetoes for tasks,
phrases anywhere for small talk, verbs without objects for ambiguity, and English refusals of four tools.
"""

import re
from collections.abc import Iterable

_VETO = re.compile(
    r"\b(?:can|could|would|will) you\b|\bare you able to\b|\bhow (?:do|would) you\b|\bwhat (?:does|can)\b"
    r"|\bdon't\b|\bdo not\b|\bnever mind\b|\bno need\b|\bwithout\b",
    re.IGNORECASE,
)
_URL = re.compile(r"https?://|www\.")
_FILE = re.compile(r"\b\w+\.\w{1,5}\b")
_TASKS = (
    ("research", 2.0, r"(?<!the )(?<!a )(?<!my )(?<!this )\bresearch\b|do research on|research into"),
    ("research", 2.0, r"(?<!the )\binvestigate\b"),
    ("research", 2.0, r"\blook into\b"),
    ("research", 2.0, r"\bfind out about\b|\bfind information (?:on|about)\b"),
    ("research", 2.0, r"\bgather sources on\b|\bfind sources for\b"),
    ("research", 1.0, r"\bdeep dive (?:on|into)\b"),
    ("write", 2.0, r"\bdraft (?:a|an|the)\b"),
    ("write", 2.0, r"\bwrite a (?:report|document|memo|summary|letter)\b"),
    ("write", 2.0, r"\bcompose an?\b"),
    ("write", 2.0, r"\bprepare a (?:document|brief|report)\b"),
    ("write", 2.0, r"\bwrite up\b|\bput together a document\b"),
    ("search", 2.0, r"\bsearch the web for\b|\bsearch online for\b"),
    ("search", 2.0, r"(?<!the )(?<!a )\bgoogle\b"),
    ("search", 1.0, r"\blook up\b"),
    ("fetch", 2.0, r"\bfetch (?:this page|the url)\b|\bopen this link\b"),
    ("fetch", 1.0, r"\bsummarize this (?:article|page)\b"),
    ("file_write", 2.0, r"\bsave this to a file\b|\bwrite to a file\b|\bcreate a file\b"),
    ("read", 2.0, r"\b(?:read|open) the file\b"),
    ("image", 2.0, r"\b(?:generate|create) an image of\b|\bcreate a picture of\b"),
    ("image", 2.0, r"\bdraw me a\b|(?<!the )\billustrate\b|\bmake a logo\b"),
)


def find_task(message: str) -> str | None:
    """Return the kind of work with the highest sum of phrases, if it leads by 1 and nothing vetoes."""
    if _VETO.search(message):
        return None
    scores: dict[str, float] = {}
    for kind, weight, pattern in _TASKS:
        if (kind == "fetch" and not _URL.search(message)) or (kind == "read" and not _FILE.search(message)):
            continue
        if re.search(pattern, message, re.IGNORECASE):
            name = "write" if kind == "file_write" else kind
            scores[name] = scores.get(name, 0.0) + weight
    ranked = sorted(scores.items(), key=lambda item: -item[1])
    if not ranked or ranked[0][1] < 2.0 or (len(ranked) > 1 and ranked[0][1] - ranked[1][1] < 1.0):
        return None
    return ranked[0][0]


_IT = r"(?:it|them|this|that|den|det|dem|dette)"
_DAY = (
    r"(?!.*\b(?:today|tomorrow|mon|tues|wednes|thurs|fri|satur|sun|i dag|i morgen|at \d|mandag|tirsdag"
    r"|onsdag|torsdag|fredag)(?:day)?)"
)
_GAPS: tuple[tuple[str, float, bool, str], ...] = (
    ("missing_parameter", 2.0, False, r"^\W*(?:please )?(?:send|book|schedule|email|call|ring|bestill)\W*$"),
    ("missing_parameter", 2.0, True, r"\bsend (?:it|them|den|dem)\b"),
    ("missing_parameter", 2.0, False,
     rf"{_DAY}.*\b(?:set up|schedule|sett opp) (?:a|et|en) (?:meeting|call|møte|samtale)\b"),
    ("missing_parameter", 2.0, False, r"\b(?:remind me|minn meg)\b(?!.*\b(?:to|about|på|om)\b)"),
    ("missing_parameter", 2.0, False,
     r"\b(?:draft|write|compose|prepare|skriv|lag) (?:an?|en|et) (?:complaint|letter|document|report|memo"
     r"|email|klage|brev|rapport|e-post)\b"
     r"(?!.*\b(?:about|regarding|for|to|on|om|til|på)\b)"),
    ("vague_scope", 1.5, True, r"\b(?:fix|handle|sort out|fiks|ordne) (?:this|that|it|dette|det)\b"),
    ("vague_scope", 1.5, True, r"\b(?:make it better|gjør det bedre)\b"),
    ("vague_scope", 1.5, False, r"^\W*(?:do )?(?:everything|all of it|the usual|alt|det vanlige)\W*$"),
    ("conflicting_constraints", 1.0, False, r"\bcheap\w*\b.*\bpremium\b|\bbrief\b.*\bcomprehensive\b"
        r"|\bbillig\w*\b.*\bluksus"),
    ("safety_critical_gap", 3.0, False, r"\b(?:delete|remove|wipe|drop|erase|slett|fjern) (?:everything"
        r"|all|the whole|alt|alle|hele)\b"),
    ("safety_critical_gap", 3.0, True, rf"\b(?:delete|slett) {_IT}\b"),
    ("safety_critical_gap", 3.0, False, r"^(?!.*\d).*\b(?:pay|send|transfer|wire|betal"
        r"|overfør)\b.*\b(?:money|payment|invoice|funds|penger|regning)"),
    ("safety_critical_gap", 3.0, True, r"\bpublish (?:it|this) publicly\b"),
)  # fmt: skip
_PRIORITY = {"safety_critical_gap": 3, "missing_parameter": 2, "vague_scope": 1, "conflicting_constraints": 0}
_OVERRIDES = (
    "just do it",
    "just go ahead",
    "use your judgment",
    "use your judgement",
    "guess",
    "whatever you think",
    "bare gjør det",
)


def find_gap(message: str, *, has_history: bool) -> str | None:
    """Return the class of the gravest pattern that is found anywhere in a message."""
    text = message.lower()
    if any(phrase in text for phrase in _OVERRIDES):
        return None
    found = [
        (_PRIORITY[kind], weight, kind)
        for kind, weight, is_deictic, pattern in _GAPS
        if not (is_deictic and has_history) and re.search(pattern, text)
    ]
    return max(found)[2] if found else None


_TRIVIAL = re.compile(
    r"\b(?:ok|okay|thanks|thank you|thx|got it|sounds good|great|perfect|noted|understood|reformat|rephrase"
    r"|summari[sz]e (?:that|this|it)|try again)\b",
    re.IGNORECASE,
)
_IDENTITY = re.compile(
    r"\b(?:who|what) are you\b|\byour (?:background|role|name|purpose)\b|\btell me about yourself\b"
    r"|\bare you an ai\b"
    r"|\b(?:ignore|forget)\b.*\binstructions\b|\bjust give me the answer\b|\bdrop the act\b"
    r"|\bstop pretending\b|\bbreak character\b",
    re.IGNORECASE,
)
_LONG_WORD = re.compile(r"[a-zA-Z]{5,}")


def is_trivial(message: str) -> bool:
    """Return whether a phrase of small talk is anywhere in a message."""
    return bool(_TRIVIAL.search(message))


def is_about_identity(message: str, topics: Iterable[str]) -> bool:
    """Return whether a message has a phrase about identity, or one word of five letters in common with a topic."""
    words = {word.lower() for word in _LONG_WORD.findall(message)}
    return bool(_IDENTITY.search(message)) or any(
        words & {word.lower() for word in _LONG_WORD.findall(topic)} for topic in topics
    )


_CANNOT = r"\bI(?: can't| cannot| can not| am unable to|'m unable to)\b[^.!?\n]{0,40}?"
_REFUSALS = (
    ("generate_image", r"(?:generate|create|make) (?:an? )?(?:images?|pictures?)"),
    ("web_fetch", r"(?:open|access|visit) (?:links?|websites?|urls?|web pages?|that url)"),
    ("web_search", r"(?:search|browse) (?:the )?(?:web|internet)"),
    ("run_python", r"(?:run|execute) (?:code|python|scripts?)"),
)


def find_refused(text: str) -> str | None:
    """Return the first of four tools that an English answer refuses to use."""
    return next(
        (tool for tool, phrase in _REFUSALS if re.search(_CANNOT + phrase, text, re.IGNORECASE)), None
    )
