"""Memories of many people's lives, and questions about them in other words.

Each memory says what one person did with one thing on one occasion, and has a detail that nothing else tells. A
question asks for the detail. It names the person, and says the rest in other words: by a synonym, in another order,
as another part of speech, or in another inflection. A sixth of the memories and questions is Norwegian.
"""

import random
from collections.abc import Sequence

from msgspec import Struct

Pair = tuple[str, str]
"""How a memory says something, and how a question does."""


class Memory(Struct, frozen=True):
    """One memory, and the question about it."""

    text: str
    question: str
    age_days: float


class _Kind(Struct, frozen=True):
    """One kind of memories. `{p}` is the person, `{a}` and `{b}` identify the memory, `{c}` is the detail."""

    memories: tuple[str, ...]
    questions: tuple[str, ...]
    a: tuple[Pair, ...]
    b: tuple[Pair, ...]
    c: tuple[str, ...]


_FIRST = """Anna Berit Carlos Dagny Elif Farid Greta Hiro Ingrid Jonas Kari Lucas Maria Nadia Olav Priya
Quentin Rosa Sven Tomas Ursula Viktor Wanda Xenia Yusuf Zofia Astrid Bjarne Chloe Dmitri Emma Fatima Georg
Hanna Ivan Julia"""
_LAST = """Aasen Becker Castillo Dahl Eriksen Ferrari Grimstad Hansen Ibsen Jensen Kowalski Lindqvist Moreau
Nygaard Okafor Petrov Quist Rossi Schmidt Tanaka Ueland Vogel Wagner Yamada Zimmer Andersen Brandt Costa
Drager Engel"""
_PLACES = """Leipzig Hamar Porto Gdansk Lyon Bergen Utrecht Zagreb Malaga Turku Aarhus Krakow Bologna Ghent
Tromso Dublin Kyoto Boston Lima Cairo"""
_MONEY = tuple(f"{amount} euros" for amount in range(21, 980, 7))
_DATES = tuple(
    f"the {day} of {month}" for month in ("March", "June", "August", "November") for day in range(1, 29)
)
_TIMES = tuple(f"{hour}:{minute:02}" for hour in range(7, 22) for minute in (0, 10, 15, 25, 40, 50))
_NUMBERS = tuple(f"{number}" for number in range(1003, 9990, 37))

_THINGS: tuple[Pair, ...] = (
    ("a road bike", "the racing bicycle"),
    ("two wool blankets", "a pair of woollen blankets"),
    ("a coffee grinder", "the machine that grinds coffee"),
    ("a leather sofa", "the couch made of leather"),
    ("a used camera", "the second-hand camera"),
    ("winter tyres", "the tyres for winter driving"),
    ("a standing desk", "the desk one stands at"),
    ("hiking boots", "the boots for hikes"),
    ("a violin", "the violins"),
    ("headphones that cancel noise", "the noise-cancelling headphones"),
    ("a cast-iron pan", "the frying pan of iron"),
    ("a raincoat", "the waterproof jacket"),
    ("garden chairs", "the chairs that stand in the garden"),
    ("a laptop", "the notebook computer"),
    ("a fridge", "the refrigerator"),
    ("curtains for the kitchen", "the kitchen drapes"),
    ("a vacuum cleaner", "the thing that cleans carpets by vacuum"),
    ("an oil painting", "the picture painted in oil"),
    ("a wooden sledge", "the sledges made of wood"),
    ("a telescope", "the telescope for stargazing"),
)
_ROOMS: tuple[Pair, ...] = (
    ("for the cabin", "as something for the cabins"),
    ("for a friend's wedding", "when a friend got married"),
    ("for the new flat", "after moving into another apartment"),
    ("as a birthday present", "to give away on a birthday"),
    ("for the office", "to use in the offices"),
    ("for the holidays", "before going on holiday"),
    ("for an aunt", "meant for the aunt"),
    ("after the old one broke", "since the previous one had broken"),
)
_MEETINGS: tuple[Pair, ...] = (
    ("the annual budget", "budgeting for the year"),
    ("the leaking roof", "a roof that leaks"),
    ("school transport", "transporting the pupils to school"),
    ("hiring a gardener", "the gardener they wanted to employ"),
    ("the choir's trip", "travelling with the choir"),
    ("noise at night", "nightly noises"),
    ("the shared laundry", "washing clothes in the common room"),
    ("the website's redesign", "designing the website anew"),
    ("parking permits", "permission to park"),
    ("the broken lift", "the elevator that was broken"),
    ("solar panels", "getting power from the sun with panels"),
    ("the summer party", "a party in summer"),
    ("a new logo", "how the logo should look"),
    ("rubbish collection", "how the garbage is collected"),
    ("insurance claims", "claiming money from the insurer"),
)
_PEOPLE: tuple[Pair, ...] = (
    ("with the landlord", "with the owner of the house"),
    ("with two lawyers", "together with a lawyer"),
    ("with the neighbours", "with people next door, the neighbour among them"),
    ("with the headmaster", "with the head of the school"),
    ("with an architect", "with architects"),
    ("with the accountant", "with whoever does the accounting"),
    ("with volunteers", "with those who volunteered"),
)
_ILLS: tuple[Pair, ...] = (
    ("a sprained ankle", "an ankle that got sprained"),
    ("back pain", "a back that hurts"),
    ("a toothache", "an aching tooth"),
    ("hay fever", "an allergy to pollen, hay above all"),
    ("a cough that would not stop", "persistent coughing"),
    ("poor eyesight", "eyes that see badly"),
    ("migraines", "a migraine"),
    ("a broken finger", "fingers, one of them broken"),
    ("high blood pressure", "blood pressure that is too high"),
    ("a swollen knee", "swelling in the knees"),
    ("insomnia", "lying sleepless, insomnia that is"),
    ("a bee sting", "being stung by a bee"),
)
_CURES: tuple[Pair, ...] = (
    ("rest", "resting"),
    ("an ointment", "something to rub on, an ointment"),
    ("swimming every day", "a daily swim"),
    ("tablets in the evening", "an evening tablet"),
    ("stretching", "exercises to stretch"),
    ("a special diet", "eating specially, as a diet"),
)
_COURSES: tuple[Pair, ...] = (
    ("Portuguese for beginners", "a beginner's class in Portuguese"),
    ("pottery", "making pots of clay, pottery"),
    ("bookkeeping", "keeping the books of a firm"),
    ("first aid", "helping the injured: first aid"),
    ("wine tasting", "how to taste wines"),
    ("sailing", "how to sail"),
    ("photography", "taking photographs"),
    ("tango", "dancing the tango"),
    ("statistics", "statistical methods"),
    ("bread baking", "how one bakes bread"),
    ("beekeeping", "looking after bees"),
    ("public speaking", "speaking in public"),
    ("carpentry", "a carpenter's work"),
    ("creative writing", "writing stories creatively"),
)
_TEACHERS: tuple[Pair, ...] = (
    ("at the community college", "in the college of the community"),
    ("at the library", "in one of the libraries"),
    ("in an online course", "over the internet"),
    ("from a retired teacher", "taught by a teacher who has retired"),
    ("in an evening class", "in classes held in the evenings"),
)
_TRIPS: tuple[Pair, ...] = (
    ("by night train", "on a train that travels overnight"),
    ("by ferry", "aboard the ferries"),
    ("with a rented van", "in a van that was hired"),
    ("on a motorbike", "riding a motorcycle"),
    ("with the grandchildren", "accompanied by a grandchild"),
    ("on foot with a tent", "walking, with tents"),
    ("by plane", "flying there, not by train"),
    ("with the football team", "together with the team that plays football"),
)
_PETS: tuple[Pair, ...] = (
    ("the cat", "a cat"),
    ("the old dog", "an elderly dog"),
    ("the parrot", "parrots"),
    ("the rabbits", "a rabbit"),
    ("the tortoise", "the shelled pet, a tortoise"),
    ("the horse", "horses"),
    ("the hens", "a hen"),
)
_CARE: tuple[Pair, ...] = (
    ("had to be vaccinated", "get a vaccination"),
    ("had lost weight", "suffer from losing weight"),
    ("needed its claws cut", "have the claws cutting done"),
    ("had eaten chocolate", "eat something made of chocolate"),
    ("was limping", "walk with a limp"),
    ("had an ear infection", "have infected ears"),
)
_TING: tuple[Pair, ...] = (
    ("en brukt båt", "båten, som ikke var ny"),
    ("nye ski", "skiene"),
    ("en sykkel til datteren", "datterens sykkel"),
    ("et spisebord", "bordet de spiser ved, spisebordet"),
    ("en varmepumpe", "varmepumpen"),
    ("et piano", "pianoet"),
    ("tre bokhyller", "bokhyllene"),
    ("en gressklipper", "maskinen som klipper gress, gressklipperen"),
    ("en vinterjakke", "jakken til vinteren, vinterjakken"),
    ("et fiskegarn", "garnet til fisking, fiskegarnet"),
)
_STED: tuple[Pair, ...] = (
    ("av naboen", "fra en nabo"),
    ("på loppemarkedet", "på et loppemarked"),
    ("på nettet", "over nett"),
    ("på auksjon", "da det var auksjonen"),
    ("i en butikk i Molde", "i butikken i Molde"),
)

_KINDS: tuple[_Kind, ...] = (
    _Kind(
        ("{p} bought {a} {b} in {place} and paid {c}.", "In {place}, {p} got {a} {b}; it cost {c}."),
        ("How much money did {p} spend on {a}, {b}?", "What was the price of {a} that {p} purchased {b}?"),
        _THINGS,
        _ROOMS,
        _MONEY,
    ),
    _Kind(
        (
            "{p} lent {a} {b} to someone from {place} until {c}.",
            "Until {c}, somebody in {place} borrows {a} from {p}, {b}.",
        ),
        ("When does {p} get back {a} which was given {b}?", "By which day must {a} be returned to {p}, {b}?"),
        _THINGS,
        _ROOMS,
        _DATES,
    ),
    _Kind(
        (
            "{p} met {b} in {place} to discuss {a}; the meeting began at {c}.",
            "At {c} {p} sat down {b} in {place} and talked about {a}.",
        ),
        (
            "What time was the discussion about {a} that {p} had {b}?",
            "{a}: when did the talk of {p} {b} start?",
        ),
        _MEETINGS,
        _PEOPLE,
        _TIMES,
    ),
    _Kind(
        (
            "{p} promised {b} to write a report on {a} before {c}.",
            "A report about {a} is due on {c}; {p} agreed on that {b}.",
        ),
        (
            "What is the deadline of what {p} writes about {a}, as arranged {b}?",
            "By when must the text of {p} regarding {a} be ready, agreed {b}?",
        ),
        _MEETINGS,
        _PEOPLE,
        _DATES,
    ),
    _Kind(
        (
            "Doctor in {place} told {p} to treat {a} with {b}; the bill was {c}.",
            "{p} had {a} and was prescribed {b} in {place} for {c}.",
        ),
        (
            "What did the doctor charge {p} for curing {a} by {b}?",
            "{p} suffered from {a}. How expensive was the treatment, {b}?",
        ),
        _ILLS,
        _CURES,
        _MONEY,
    ),
    _Kind(
        (
            "{p} has an appointment about {a} at {c}; until then {b} should help.",
            "About {a}, {p} will see a physician at {c} and tries {b} meanwhile.",
        ),
        (
            "At what hour does {p} go to the doctor because of {a}, trying {b}?",
            "When is the check of {a} for {p}, who was told to do {b}?",
        ),
        _ILLS,
        _CURES,
        _TIMES,
    ),
    _Kind(
        (
            "{p} learns {a} {b} in {place}; the room is number {c}.",
            "In {place} {p} takes lessons in {a} {b}, in room {c}.",
        ),
        ("In which room is {p} studying {a}, {b}?", "Where is the course of {p} held, {a}, {b}?"),
        _COURSES,
        _TEACHERS,
        _NUMBERS,
    ),
    _Kind(
        ("{p} signed up for {a} {b} and the fee is {c}.", "The fee of {c} for {a} {b} was paid by {p}."),
        (
            "What does it cost {p} to attend lessons in {a}, {b}?",
            "How much did {p} have to pay to be taught {a}, {b}?",
        ),
        _COURSES,
        _TEACHERS,
        _MONEY,
    ),
    _Kind(
        (
            "{p} travelled to {place} {a} and stayed {b}; the booking was {c}.",
            "Booking {c}: {p} to {place} {a}, staying {b}.",
        ),
        (
            "Which reservation number did {p} have for the journey to {place}, {a}, {b}?",
            "{p} went to {place} {a}. Under what number was it reserved, {b}?",
        ),
        _TRIPS,
        (
            ("at a hostel", "sleeping in hostels"),
            ("with relatives", "at a relative's home"),
            ("on a campsite", "camping"),
            ("in a monastery", "as guest of monks in their monastery"),
            ("at the harbour", "near the harbours"),
            ("in an expensive hotel", "paying a lot for hotels"),
        ),
        _NUMBERS,
    ),
    _Kind(
        (
            "{p} took {a} to the vet in {place} because it {b}; the visit was on {c}.",
            "On {c} the vet in {place} saw {a} of {p}, which {b}.",
        ),
        (
            "On which day did {p} visit the animal doctor with {a}, did it {b}?",
            "When was {a} belonging to {p} examined, did it {b}?",
        ),
        _PETS,
        _CARE,
        _DATES,
    ),
    _Kind(
        ("{p} kjøpte {a} {b} og betalte {c}.", "{p} betalte {c} for {a} {b}."),
        ("Hva kostet {a} som {p} skaffet seg {b}?", "Hvor mye ga {p} for {a}, {b}?"),
        _TING,
        _STED,
        tuple(f"{number} kroner" for number in range(110, 9900, 90)),
    ),
    _Kind(
        (
            "{p} solgte {a} {b}; kjøperen henter den klokken {c}.",
            "Klokken {c} kommer kjøperen av {a} til {p}, som la den ut {b}.",
        ),
        (
            "Når blir {a} som {p} selger {b} hentet?",
            "Hvilket tidspunkt avtalte {p} for {a}, salget skjedde {b}?",
        ),
        _TING,
        _STED,
        _TIMES,
    ),
)


def make_memories(count: int, seed: int = 7) -> list[Memory]:
    """Return different memories, no two of which have the same person, kind, thing and occasion."""
    random_ = random.Random(seed)
    people = [f"{first} {last}" for first in _FIRST.split() for last in _LAST.split()]
    random_.shuffle(people)
    places = _PLACES.split()
    people = people[:500]
    made: list[Memory] = []
    seen: set[tuple[object, ...]] = set()
    while len(made) < count:
        person, number = random_.choice(people), random_.randrange(len(_KINDS))
        kind = _KINDS[number]
        a, b, place = random_.choice(kind.a), random_.choice(kind.b), random_.choice(places)
        if (person, number, a, b) in seen:
            continue
        seen.add((person, number, a, b))
        text = random_.choice(kind.memories).format(
            p=person, a=a[0], b=b[0], c=random_.choice(kind.c), place=place
        )
        question = random_.choice(kind.questions).format(p=person, a=a[1], b=b[1], place=place)
        made.append(Memory(_as_sentence(text), _as_sentence(question), random_.random() * 365))
    return made


def choose_questions(memories: Sequence[Memory], count: int, seed: int = 11) -> list[int]:
    """Return which memories are asked for."""
    return random.Random(seed).sample(range(len(memories)), count)


def _as_sentence(text: str) -> str:
    return text[:1].upper() + text[1:]
