"""Questions of general knowledge, with their answers."""

from collections.abc import Mapping, Sequence

from treadle.tasks.draws import Wording
from treadle.testbed.working.talks.talk import Reply, Talk

_ANSWERS = {
    "CSV": "comma-separated values: a table as text, with one row in each line and the cells separated by commas",
    "JSON": "a text format for objects, lists, texts, numbers and truth values",
    "YAML": "a text format for settings and data that shows nesting by indentation",
    "UTF-8": "an encoding that stores each character in one to four bytes",
    "a checksum": "a short value computed from data; if the data change by accident, the value almost surely "
    "differs",
    "a backup": "a copy of data that is kept apart, so that the data can be restored after a loss",
    "a changelog": "a list of the changes that each version of a product brought",
    "an invoice": "a bill that a seller sends to a buyer, with the goods or services, the prices and the "
    "date of payment",
    "a ledger": "a record of all the amounts that go in and out of accounts, in the order of their dates",
    "a purchase order": "a document with which a buyer commits to buy certain goods at certain prices",
    "a delivery note": "a list of the goods in a delivery, which comes with them and usually has no prices",
    "a credit note": "a document with which a seller reduces or cancels what an invoice asks for",
    "a lease": "a contract that lets somebody use a thing for a time in exchange for payments",
    "an audit": "an independent check of whether records and processes are correct and follow the rules",
    "a key figure": "a number that shows at a glance how well something works, such as the share of late "
    "deliveries",
    "a median": "the middle value when all values are sorted; half of them are not above it, and half are "
    "not below it",
    "an outlier": "a value that lies far away from nearly all others, and that may be an error or something "
    "special",
    "a primary key": "the column, or the columns, whose values identify each row of a table",
    "version control": "a system that keeps every state of files with who changed what, when and why",
    "a merge conflict": "two changes of the same lines that a version control system cannot combine by itself",
    "an environment variable": "a named value that a process gets from the one that started it, often used "
    "for settings",
    "a log level": "the importance of a message in a log, such as debug, info, warning or error",
    "a time-out": "the limit after which a program stops to wait for an answer",
    "a cache": "a store of results that are quick to get again, kept because computing or fetching them is slow",
    "a checklist": "a list of steps or points that are ticked off one by one, so that none is forgotten",
    "a stakeholder": "a person or group that is affected by a project or can influence it",
    "a milestone": "a point in a project at which a defined result must be there",
    "a service level": "a measurable promise about a service, such as the time until a first answer",
    "a persona": "an invented person who stands for a group of users when something is designed",
    "a style guide": "a set of rules for how texts, pictures or programs of an organisation should look",
    "a glossary": "a list of terms with their explanations",
    "an appendix": "a part at the end of a document with material that would interrupt its main text",
    "a quorum": "the number of members who must be present so that a meeting can decide",
    "a proxy vote": "a vote that one person casts in the name of another who authorised it",
    "a deductible": "the part of a damage that the insured person pays before the insurance does",
    "a warranty": "the promise of a seller or maker to repair or replace a thing that has a fault, for a "
    "certain time",
    "a cold chain": "the unbroken cooling of goods on their way from the producer to the consumer",
    "a pallet": "a flat base on which goods are stacked so that a fork-lift can move them together",
    "a stocktake": "the counting of all goods on hand, to compare them with the records",
    "a lead time": "the time between an order and its delivery",
}
_CAPITALS = {"a": "A", "an": "An"}


def _reply(values: Mapping[str, str], tools: Sequence[str]) -> Reply:
    term = values["term"]
    answer = _ANSWERS.get(term)
    if answer is None:
        return Reply(f"I know nothing certain about {term}.")
    article, _, rest = term.partition(" ")
    shown = f"{_CAPITALS[article]} {rest}" if article in _CAPITALS else term[:1].upper() + term[1:]
    return Reply(f"{shown} is {answer}.", "This is general knowledge, so no tool is needed.")


KNOWLEDGE: tuple[Talk, ...] = (
    Talk(
        name="definition",
        prompts=tuple(
            map(
                Wording,
                (
                    "Without looking anything up: what is {term}?",
                    "Just from what you know, how would you explain {term} to a newcomer?",
                    "A quick question of principle, no need to open anything: what do people mean by {term}?",
                    "You need not check any file for this one. In one sentence, what is {term}?",
                ),
            )
        ),
        draw=lambda things, draw: {"term": draw.pick(tuple(_ANSWERS))},
        reply=_reply,
    ),
)
