"""Requests that an agent with tools for files or data cannot fulfil, with the agent's answers."""

from collections.abc import Mapping, Sequence

from treadle.tasks.draws import Draw, Wording, pick
from treadle.tasks.files.materials import CITIES, FIRST_NAMES, PRODUCTS
from treadle.testbed.working.talks.talk import Reply, Talk

_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday")
_REQUESTS: Mapping[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "phone": (
        (
            "Please phone {person} and say that the {things} will be late.",
            "Could you call {person} right now about the {things}?",
        ),
        "make phone calls",
        ("phone", "call", "dial", "voice"),
    ),
    "letter": (
        (
            "Send {person} an e-mail that the {things} are ready.",
            "Mail the {things} to {person} before {day}, please.",
        ),
        "send e-mail",
        ("mail", "send", "message", "smtp"),
    ),
    "payment": (
        (
            "Transfer {amount} euros to {person} for the {things}.",
            "Pay the bill of {amount} euros for the {things} from our account.",
        ),
        "move money",
        ("pay", "transfer", "bank", "transaction"),
    ),
    "travel": (
        (
            "Book me a train to {city} on {day}; I have to look at the {things} there.",
            "I need a hotel room in {city} from {day} on, because of the {things}. Book one.",
        ),
        "book travel",
        ("book", "reserv", "travel", "hotel", "train"),
    ),
    "order": (
        (
            "Order {amount} new {product}s from our usual supplier, they belong to the {things}.",
            "Buy a {product} online so that we can go on with the {things}.",
        ),
        "order goods",
        ("order", "buy", "purchase", "shop", "cart"),
    ),
    "print": (
        (
            "Print the {things} twice and put one set on the desk of {person}.",
            "Run off {amount} paper copies of the {things}, please.",
        ),
        "print anything",
        ("print",),
    ),
    "building": (
        (
            "Turn the heating in the room with the {things} down before {day}.",
            "Unlock the door of the room where the {things} are for {person}.",
        ),
        "control the building",
        ("heat", "door", "light", "device", "home"),
    ),
    "picture": (
        (
            "Take a photo of the {things} and show it to me.",
            "Film how {person} works on the {things}.",
        ),
        "take pictures",
        ("photo", "camera", "image", "video", "film"),
    ),
    "calendar": (
        (
            "Move my appointment with {person} about the {things} to {day}.",
            "Put a meeting on the {things} into the calendar of {person} for {day}.",
        ),
        "change calendars",
        ("calendar", "event", "appointment", "meeting", "schedule"),
    ),
    "weather": (
        (
            "What will the weather be like in {city} on {day}? The {things} stand outside.",
            "Is it raining in {city} at the moment? The {things} are on a lorry.",
        ),
        "look at the weather",
        ("weather", "forecast"),
    ),
}
"""The wordings, what the agent cannot do, and parts of the names of tools that could do it."""

_REPLIES = (
    "I can't {deed}: my tools are {tools}, and none of them can do that.",
    "I'm sorry, but I can't {deed}. The tools that I have for you are {tools}.",
    "That is beyond what I can do here. I cannot {deed}; I can only work with {tools}.",
)


def _draw(things: str, draw: Draw) -> dict[str, str]:
    return {
        "things": things,
        "person": draw.pick(FIRST_NAMES),
        "city": draw.pick(CITIES),
        "day": draw.pick(_DAYS),
        "amount": str(draw.between(3, 400)),
        "product": draw.pick(PRODUCTS),
    }


def _make(name: str) -> Talk:
    wordings, deed, banned = _REQUESTS[name]

    def reply(values: Mapping[str, str], tools: Sequence[str]) -> Reply:
        shown = ", ".join(tools) if tools else "my knowledge"
        text = pick(_REPLIES, name, *values.values()).format(deed=deed, tools=shown)
        return Reply(text, f"For this I would have to {deed}. None of my tools does that, so I say so.")

    return Talk(
        name=f"refusal_{name}",
        prompts=tuple(map(Wording, wordings)),
        draw=_draw,
        reply=reply,
        banned=banned,
    )


REFUSALS: tuple[Talk, ...] = tuple(map(_make, _REQUESTS))
