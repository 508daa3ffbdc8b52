"""The names, places, sentences and source files that the tasks are made of."""

import json

from treadle.tasks.draws import Draw


def _split(text: str) -> tuple[str, ...]:
    return tuple(text.split("|" if "|" in text else None))


FIRST_NAMES = _split(
    "Ada Amir Anke Beatriz Bruno Chiara Chidi Dana Diego Edith Emeka Farah Felix Gita Goran Hana Henrik "
    "Ines Ivo Jana Jonas Kaito Keira Lars Leila Luca Mabel Marek Mei Nadia Nils Noor Olga Omar Paula Petra "
    "Quinn Rafael Rosa Samir Selma Tariq Tessa Uma Viktor Wanda Xenia Yusuf Zoe Zoltan"
)
LAST_NAMES = _split(
    "Abel Adeyemi Bauer Berg Castro Cohen Dahl Duarte Eriksen Fischer Fontana Garcia Gupta Haas Hoffmann "
    "Ibrahim Ito Jensen Kaur Keller Kowalski Laurent Lindqvist Marin Mendez Nakamura Novak Okafor Osei Park "
    "Petrov Quist Rossi Ruiz Santos Schmidt Silva Tanaka Toth Urban Vargas Vogel Weber Wolff Yamada Zhou"
)
COMPANIES = _split(
    "Acorn Tools|Blue Heron Foods|Brightwater Labs|Cedar & Stone|Copperfield Print|Delta Paper|Eastgate Clinic|"
    "Fernhill Textiles|Granite Works|Harbour Logistics|Ironbridge Parts|Juniper Books|Kestrel Aviation|"
    "Lakeside Dairy|Maple Furniture|Northwind Energy|Orchard Software|Pinecrest Hotels|Quayside Repairs|"
    "Redwood Garden|Silverline Optics|Tidewater Marine|Umber Ceramics|Valley Seeds|Westfield Cycles"
)
CITIES = _split(
    "Aarhus Basel Bergen Bilbao Bristol Cork Dresden Gdansk Ghent Graz Leeds Lyon Malmo Nantes Oporto Padua "
    "Riga Seville Split Tallinn Turin Turku Utrecht Vilnius Zagreb"
)
REGIONS = ("north", "south", "east", "west", "central", "coast", "islands", "highlands")
PRODUCTS = _split(
    "bracket bucket cable clamp drill filter funnel gasket gauge hammer hinge hose ladder lamp lever nozzle "
    "paint pallet pliers pulley pump rope saw screw shelf shovel spanner tape tarp torch valve vise washer "
    "wedge wheel winch wire"
)
DEPARTMENTS = ("billing", "design", "facilities", "finance", "legal", "marketing", "research", "support")
SERVICES = _split(
    "accounts archive billing catalog checkout gateway inventory ledger mailer media notifier orders payments "
    "pricing profile reports scheduler search shipping tracker"
)
TOPICS = _split(
    "Backups|Billing|Caching|Deployment|Error Codes|Exports|Getting Started|Glossary|Imports|Incidents|"
    "Installation|Integrations|Limits|Localisation|Monitoring|Notifications|Onboarding|Permissions|Pricing|"
    "Quotas|Rate Limits|Releases|Reporting|Retention|Roles|Scheduling|Search|Security|Storage|Support|Teams|"
    "Templates|Testing|Themes|Tokens|Upgrades|Webhooks|Workflows"
)
SENTENCES = (
    "Ask the front desk if something is unclear.",
    "Figures are provisional until the month is closed.",
    "Please keep the older version until the review is done.",
    "The next review is planned for the end of the quarter.",
    "This page was moved here from the old share.",
    "Numbers were checked by hand twice.",
    "See the shared calendar for the dates.",
    "The format was agreed with the auditors.",
    "Nothing here is confidential.",
    "Send corrections to the owner of the folder.",
    "The old process stays in place for now.",
    "Two of the entries came in late.",
)
NOTE_NAMES = (
    "README.md",
    "notes.txt",
    "docs/handover.md",
    "docs/contacts.txt",
    "misc/todo-later.txt",
    "misc/meeting.md",
    "old/readme-old.txt",
    "about.txt",
)


def money(cents: int) -> str:
    """Format an amount in cents as a decimal, such as `-12.05`."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"


def cents(text: str) -> int:
    """Return an amount in cents, read from the format of `money` or a format that people use: `1,204.5`, `12`,
    `-3.20`."""
    digits = text.strip().replace(",", "")
    sign = -1 if digits.startswith("-") else 1
    whole, _, part = digits.lstrip("+-").partition(".")
    return sign * (int(whole or "0") * 100 + int(part.ljust(2, "0")[:2] or "0"))


def to_json(value: object) -> str:
    """Encode a value as indented JSON."""
    return json.dumps(value, indent=2) + "\n"


def people(draw: Draw, count: int) -> list[str]:
    """Return different full names. No two have the same first name."""
    lasts = draw.sample(LAST_NAMES, count)
    return [f"{first} {last}" for first, last in zip(draw.sample(FIRST_NAMES, count), lasts, strict=True)]


def email(name: str, draw: Draw) -> str:
    """Return an e-mail address for a full name."""
    first, last = name.lower().split(" ")[:2]
    host = draw.pick(COMPANIES).split(" ")[0].lower()
    return f"{first}.{last}@{host}.example"


def date(draw: Draw, year: int | None = None, month: int | None = None) -> str:
    """Return a date such as `2024-03-09`."""
    return f"{year or draw.between(2021, 2025)}-{month or draw.between(1, 12):02d}-{draw.between(1, 28):02d}"


def prose(draw: Draw, count: int) -> str:
    """Return a few sentences without relevant information."""
    return " ".join(draw.sample(SENTENCES, count))


def add_notes(files: dict[str, str], draw: Draw, count: int, folder: str = "-") -> None:
    """Add `count` files that have nothing to do with the task. None of them is in `folder`."""
    names = [name for name in NOTE_NAMES if name not in files and not name.startswith(f"{folder}/")]
    for name in draw.sample(names, count):
        title = draw.pick(TOPICS)
        owner = draw.pick(FIRST_NAMES)
        files[name] = f"{title}\n\n{prose(draw, draw.between(1, 4))}\n{owner}, {date(draw)}\n"


VERBS = (
    "build",
    "check",
    "close",
    "fetch",
    "format",
    "index",
    "load",
    "merge",
    "parse",
    "send",
    "sort",
    "store",
)
LANGUAGES = ("py", "js", "go")
COMMENT = {"py": "#", "js": "//", "go": "//"}


def identifier(draw: Draw) -> str:
    """Return an identifier such as `merge_pump`."""
    return f"{draw.pick(VERBS)}_{draw.pick(PRODUCTS)}"


def function(draw: Draw, language: str, name: str, called: str, comment: str | None = None) -> list[str]:
    """Return the lines of a function that calls another one."""
    value, number = draw.pick(PRODUCTS), draw.between(2, 99)
    notes = [] if comment is None else [f"    {COMMENT[language]} {comment}"]
    if language == "py":
        head, end = f"def {name}({value}):", []
        body = [f"    {value} = {called}({value})", f"    return {value} + {number}"]
    elif language == "js":
        head, end = f"function {name}({value}) {{", ["}"]
        body = [f"    const result = {called}({value});", f"    return result + {number};"]
    else:
        head, end = f"func {name}({value} int) int {{", ["}"]
        body = [f"    result := {called}({value})", f"    return result + {number}"]
    return [head, *notes, *body, *end, ""]


def source_paths(draw: Draw, folder: str, count: int) -> list[str]:
    """Return different paths of source files, some of them in subfolders."""
    paths = []
    for service in draw.sample(SERVICES, count):
        below = draw.pick(("", "", "core/", "web/", "jobs/"))
        paths.append(f"{folder}/{below}{service}.{draw.pick(LANGUAGES)}")
    return paths
