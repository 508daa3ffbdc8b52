"""The words around a request: who asks, on what occasion, what for, and in which style. They never change
the request."""

from treadle.core.types import Json
from treadle.tasks.draws import Draw
from treadle.testbed.request_facts import Facts, text_of
from treadle.testbed.writers.vocabulary import split

_WHO = split(
    "my manager|the auditor|a colleague from accounting|our new trainee|the branch office|a customer|"
    "the night shift|"
    "the board|our landlord|the project lead|a supplier|the works council|the data protection officer|my deputy|"
    "the help desk|an old client|the regional office|the quality team|a journalist|the insurance company|"
    "the head of purchasing|our volunteer coordinator|a teacher|the ministry|the receptionist|two of my neighbours|"
    "the purchasing committee|a visitor from abroad|the union|the system administrator|our printer's shop|"
    "the safety officer|the lawyer|someone from logistics|the training department|the warehouse|a student intern|"
    "the translator|the owner|the steering group"
)
_OCCASION = split(
    "at breakfast|during the handover|in this morning's stand-up|on the phone an hour ago|after the fire drill|"
    "in a long e-mail thread|at the end of yesterday's review|between two meetings|in the lift|over lunch|"
    "at the trade fair|while I was on leave|in the weekly call|on a sticky note|right before closing time|"
    "in the margin of a contract|during the stocktake|at the parents' evening|in the chat of our team|on the train|"
    "after the server came back|in a rather loud workshop|at the counter|when the shift changed|in the car park|"
    "during the inspection|in the comments of a draft|at the general assembly|while we packed boxes|in passing|"
    "after the press conference|on a postcard, of all things|in the minutes of last week|during rehearsal|"
    "at the kitchen table|while the printer was jammed|by fax|in the middle of the migration|at the help desk|"
    "on my first day back"
)
_ACTION = split(
    "asked about|complained about|brought up|wants to close|doubts our figures on|is curious about|"
    "has to sign off on|"
    "needs proof for|started a discussion on|reminded me of|wants an update on|is rewriting the rules for|"
    "handed me everything on|insists on a second look at|lost the overview of|promised an answer on|"
    "opened a ticket about|is preparing a talk on|cannot let go of|made a bet about|found a gap in|"
    "wants to start over with|is about to take over|put a question mark behind|has taken an interest in"
)
_PURPOSE = split(
    "so that we can close the month|before I write my report|so the training material is right|for a short memo|"
    "since the old list was lost|because two people told me different things|for the archive|to settle an argument|"
    "so that nobody has to guess any more|for a slide in tomorrow's deck|as I want to compare it with last year|"
    "to double-check what our vendor claims|because the template asks for it|for the handbook we are writing|"
    "so I can answer with a clear conscience|to find out whether we are done|as a basis for the next budget|"
    "since I cannot get to my desk today|for a grant application|to make the newcomers' life easier|"
    "because a deadline was moved forward|to keep the promise I made|for the inventory of our department|"
    "as an example for the course I teach|so that the contract can be renewed|to get the approval this week|"
    "because the numbers on paper look odd|for our internal newsletter|since the dashboard is down|"
    "to prepare the visit of an inspector|so we know what to order|for the record|"
    "because I was asked twice already|"
    "to see whether the new process works|as part of the spring cleaning|so that the night shift can go on with it|"
    "for the appendix of a study|to plan the next sprint|because memory is not to be trusted|for peace of mind"
)
_CLOSINGS = split(
    "Take the time you need.|I am at my desk until five.|No need for a long explanation.|"
    "Just tell me when you have it.|If something looks odd, say so.|I will pass it on right away.|"
    "Accuracy matters more to me than speed here.|Plain words are fine.|I owe you a coffee.|"
    "A colleague will read your answer too.|It goes straight into a form.|You would do me a great favour.|"
    "I have tried it by hand and gave up.|Nothing else has to happen for now.|"
    "Please look at the real data, do not guess.|"
    "My phone battery is low, so keep it readable.|I am no expert in this.|Everything beyond that can wait.|"
    "That is the last open point on my list.|We do this every quarter, by the way.|Your help is much appreciated.|"
    "I would rather know than assume.|The others are waiting for it.|It should not take long.|"
    "I know it sounds simple.|Feel free to work as you usually do.|Then I can finally go home.|"
    "I am curious what comes out.|This has bothered me all week.|Better to ask than to be wrong.|"
    "There is no trick in it, I hope.|I will check it against my notes.|Excuse the short notice.|"
    "Somebody has to do it.|It is for a good cause.|The last person who did this has left.|"
    "Let us get it off the table.|I am reading along on a small screen.|Our system is slow today, so I ask you.|"
    "Whatever you find, I can live with it."
)
_STATES = split(
    "we are in the middle of|I was put in charge of|our team struggles with|the whole floor talks about|"
    "I am new to|this year it is my turn to look after|we have just begun with|half of my week goes into|"
    "we fell behind with|I am writing a guide on|next month we want to be done with|it is all about|"
    "I have inherited|somebody has to keep an eye on|we reorganise|our little office lives from|"
    "I am being trained in|the budget hangs on|three departments share|I promised to tidy up"
)
_GREETINGS = {
    "formal": split(
        "Good morning.|Good afternoon.|Dear assistant,|Good day to you.|I hope this message finds you well.|"
        "Allow me a request.|May I trouble you with something?|With kind regards in advance, a request:"
    ),
    "chatty": split(
        "Hi there!|Hey, hope you are having a good day!|Hello again :)|Hiya, me once more.|Oh good, you are there!|"
        "Hello hello!|Hey you, quick favour?|Morning! Or whatever time it is where you are."
    ),
    "brief": split(
        "Quick one.|Short question.|Urgent.|Just this:|One thing.|Need this fast.|Hi.|Brief task."
    ),
    "plain": split(
        "Hello.|Hi.|There is something I need.|A request.|I could use some help.|Here is what I am after.|"
        "Hello, it is me again.|I have something for you."
    ),
}
_STYLES = {
    "brief": ("brief", "terse", "short", "impatient", "curt", "concise", "telegram", "hurry"),
    "formal": ("formal", "polite", "correct", "reserved", "official", "courteous"),
    "chatty": (
        "chatty",
        "friendly",
        "talkative",
        "warm",
        "cheerful",
        "casual",
        "humor",
        "humour",
        "enthusias",
    ),
}


def frame(request: str, topic: str, persona: Facts, draw: Draw) -> str:
    """Return a message with a request as one of its paragraphs, in the style of a persona."""
    style = style_of(text_of(persona, "style"))
    about = lower_first(topic)
    context = _context(about, text_of(persona, "role"), style, draw)
    before: list[str] = []
    after: list[str] = []
    if draw.chance(0.35 if style == "brief" else 0.7):
        before.append(draw.pick(_GREETINGS[style]))
    # The context may also follow the request.
    (after if draw.chance(0.25) else before).append(context)
    if draw.chance(0.35 if style == "brief" else 0.75):
        after.append(draw.pick(_CLOSINGS))
    parts = [" ".join(before), request, " ".join(after)]
    return "\n\n".join([part for part in parts if part])


def _context(about: str, role: str, style: str, draw: Draw) -> str:
    """Return one or two sentences about why somebody asks."""
    who, occasion = draw.pick(_WHO), draw.pick(_OCCASION)
    action, purpose, state = draw.pick(_ACTION), draw.pick(_PURPOSE), draw.pick(_STATES)
    cause = draw.pick(
        (
            f"{who} {action} {about} {occasion}",
            f"{occasion}, {who} {action} {about}",
            f"{state} {about}, and {occasion} it came up again",
            f"you see, {state} {about}; {who} mentioned it {occasion}",
        )
    )
    intent = draw.pick(
        (
            f"I need what follows {purpose}",
            f"it is {purpose}" if purpose.startswith("for ") else f"I am asking {purpose}",
            f"please help me with it {purpose}",
            f"the answer is wanted {purpose}",
        )
    )
    if style == "brief":
        return upper_first(
            f"{cause}." if draw.chance(0.5) else f"{about}: {purpose}, {occasion} {who} {action} it."
        )
    first = upper_first(cause)
    if role and draw.chance(0.4):
        article = "an" if role[:1].lower() in "aeiou" else "a"
        first = f"I work as {article} {role}. {first}"
    return f"{first}. {upper_first(intent)}."


def style_of(text: str) -> str:
    """Return the style that a description of a persona's writing comes closest to."""
    found = [(text.lower().find(word), style) for style, words in _STYLES.items() for word in words]
    return min([item for item in found if item[0] >= 0], default=(0, "plain"))[1]


def lower_first(text: str) -> str:
    """Return a text with a small first letter, unless its first word is an abbreviation."""
    return text if text[1:2].isupper() else text[:1].lower() + text[1:]


def upper_first(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


_TELLS = (
    "{fact}",
    "Oh, I forgot. {fact}",
    "Sorry, I should have said so. {fact}",
    "Right, you cannot know that. {fact}",
    "Good that you ask. {fact}",
)
_ASKS = (
    "Good. One more thing:",
    "That helps. And now this:",
    "Very good. I have another question:",
    "Noted. While you are at it:",
    "Great, next one:",
    "All right. Something else came up:",
)


def tell(fact: str, *key: Json) -> str:
    """Return the user's answer to a question, with the fact that was asked for."""
    return Draw(str(key)).pick(_TELLS).format(fact=fact)


def ask_more(request: str, *key: Json) -> str:
    """Return a user's further request."""
    return f"{Draw(str(key)).pick(_ASKS)}\n\n{request}"
