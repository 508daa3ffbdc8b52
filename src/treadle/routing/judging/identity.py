"""Messages about who the assistant is, or about what its persona may say."""

import re
from collections.abc import Iterable
from functools import lru_cache

from treadle.routing.judging.reading import read

_ABOUT = (
    # Who the assistant is.
    r"who (?:exactly |really )?(?:are|r) you\b(?! (?:talking|referring|quoting|writing|voting|going|to))",
    r"what (?:exactly |really )?(?:are|r) you\b(?= *(?:[?!.,]|$|really|exactly|actually|anyway|made of"
    r"|capable of))",
    r"what(?:'s| is) your (?:real |actual |true )?(?:name|role|purpose|background|job|identity|mission"
    r"|personality)",
    r"your (?:own |hidden |secret |initial |original |system )*+(?:system prompt|instructions|persona"
    r"|guidelines"
    r"|creators?|makers?|training data|guardrails|true self|real self)\b(?! (?:for|on|in|from)\b)",
    r"(?:system|hidden|initial|secret) prompt\b|(?:do you|you) have (?:a|your own) (?:name|body|gender"
    r"|real name)|what should i call you"
    r"|(?:talking|speaking|chatting|writing) (?:to|with) (?:an? )?(?:human|person|bot|machine|robot|ai"
    r"|computer|real)\b"
    r"|(?:who|what company) (?:is|stands?|owns?|runs?) (?:behind )?(?:you\b|your (?:creator|maker|owner))"
    r"|(?:har du|du har) (?:et|ditt eget) (?:navn|kjønn)|(?:snakker|skriver|chatter) jeg (?:med"
    r"|til) (?:et |en )?"
    r"(?:menneske|bot|robot|maskin|ki|ai|ekte)|hvem (?:står bak|eier|driver|har programmert) deg",
    r"(?:tell me|talk|introduce|describe) (?:a bit |a little |more |something )?(?:about )?yourself",
    r"are you (?:really |actually |just |secretly |even |some |maybe |like )*+(?:an? )?(?:ai|bot|robot"
    r"|human|person"
    r"|machine|chatbot|real|sentient|conscious|alive|gpt|chatgpt|claude|gemini|language model|llm)\b"
    r"(?! (?:user|expert|enthusiast|fan))",
    r"(?:who|which company) (?:made|built|created|trained|programmed|developed) you\b",
    r"(?:what|which) (?:model|llm|ai)(?: model)? (?:are you|is this|am i (?:talking|speaking) (?:to|with))",
    r"hvem (?:er du(?! (?:ute|på|sammen))|(?:har )?(?:laget|lagde|lager|trente|utviklet|bygde|trent"
    r"|skapte) deg)",
    r"kven er du|hva er du(?= *(?:[?!.,]|$|egentlig|for noe))",
    r"hva heter du|hva er (?:navnet|rollen|formålet|bakgrunnen|oppgaven|jobben) (?:din|di|ditt)\b"
    r"|ditt egentlige navn",
    r"(?:fortell (?:meg )?(?:litt |mer )?om|presenter|beskriv) deg selv",
    r"er du (?:egentlig |bare |virkelig |faktisk |liksom )*+(?:en |et |ein )?(?:ai|ki|bot|robot|menneske|maskin"
    r"|ekte|chatbot|språkmodell|chatgpt|bevisst|levende)\b",
    # Attempts to leave the persona or its rules.
    r"(?:drop|stop|quit) (?:the|this|your|that) (?:act\b|role-?play|character|persona|pretence|pretense"
    r"|charade)",
    r"stop (?:pretending|role-?playing)|break (?:out of )?character|out of character",
    r"you (?:have no|no longer have|need not follow|don't have to follow|do not have to follow"
    r"|no longer have to follow)"
    r" (?:any |to (?:follow|obey) )*+(?:your |the |any )?(?:rules|restrictions|guidelines|limits|filters?)",
    r"(?:act|behave|answer|speak|svar) (?:as though|as if|like) you (?:had|have|were|are)\b|(?:du har"
    r"|hvor du har) ingen (?:regler|filter)",
    r"(?:you are|you're) (?:now (?:an?|my|the|dan|in|free)|no longer)\b|from now on,? you(?:'re| are| will)",
    r"(?:pretend|act as if|act like) (?:that )?(?:you(?:'re| are| have)|to be)\b",
    r"(?:ignore|forget|disregard|override|bypass) (?:(?:all|any|every|everything|your|the|of|previous"
    r"|prior|earlier"
    r"|above|these|those|system|safety|own|initial|original) )*+(?:instructions?|rules|constraints|guidelines"
    r"|restrictions|prompts?|persona|guardrails|programming)\b(?! (?:in|of|from|for|about) )",
    r"(?:developer|god|dan|jailbreak) mode\b(?! (?:on|in) (?:my|the|android|chrome))|do anything now"
    r"|jailbreak you",
    r"(?:reveal|show|print|repeat|output|leak|dump) (?:me )?(?:your|the) (?:full |hidden |initial |entire )*+"
    r"(?:system )?(?:prompt|instructions) (?:above|verbatim|word)",
    r"(?:slutt|stopp) (?:å |med å )(?:late som|spille)|(?:gå )?ut av rollen|dropp (?:rollen|skuespillet"
    r"|masken)",
    r"du er (?:nå (?:en|et|min|fri)|ikke lenger)\b|fra nå av er du",
    r"(?:lat|late) som (?:om |at )?du\b",
    r"(?:ignorer|glem|overse|se bort fra|omgå|bryt) (?:(?:alle|alt|dine|de|hele|tidligere|forrige|andre"
    r"|egne) )*+"
    r"(?:instruks(?:joner|jonene|er|ene)|regler|reglene|begrensninger|retningslinjer|ledeteksten)\b"
    r"(?! (?:i|fra|for|om) )",
    r"(?:vis|skriv ut|avslør|gjenta) (?:meg )?(?:system|instruks|ledetekst)\w*+|systemprompten"
    r"|systeminstruks\w*+",
)
_IDENTITY = re.compile(r"(?<!\w)(?:" + "|".join(_ABOUT) + ")")

_COMMON_TEXT = (
    "about above after again against also always and answer anything are avoid because been before being "
    "best better both but can could details discuss does doing don't down during each even ever every "
    "everything few for from general give given good have having help here how into information its just "
    "keep kind know less like make many may more most much must need never not nothing now offer only "
    "other our out over own people please provide question really refuse right say should show some "
    "something still such sure take talk tell than that the their them then there these they thing things "
    "this those through too topic under until use user users using very want was way were what when where "
    "which while who why will with without work would you your is it in on to of a an or as at by aldri "
    "alle alltid andre at av bare bli blir bruk bruker brukere brukeren da de den denne der deres det "
    "dette du eller en er et for fra før gi gir gjøre gjør god ha han har hun hva hvem hvis hvor hvordan "
    "hvorfor i ikke ingen jeg kan kom kun la lag man med meg men mer mange mot må mye når noe noen og om "
    "opp oppgi oss over på råd s si skal som snakk svar så ta til under unngå ut uten var ved vi vil være "
    "å"
)
_COMMON = frozenset(_COMMON_TEXT.split())
_LETTERS = re.compile(r"[^\W\d_]{3,40}+")
_DOMAINS = tuple(
    re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])")
    for pattern in (
        r"legal\w*|laws?|lawyers?|lawsuits?|sue|sued|suing|in court|court case|to court|attorney"
        r"|litigation|liable"
        r"|my (?:lease|landlord|employer|contract)|tenancy|juridisk\w*|jus|lov(?:en|er|lig)?|advokat\w*"
        r"|saksøk\w*|rettssak\w*"
        r"|i retten|utleier\w*|husleiekontrakt\w*|arbeidsgiver\w*",
        r"medical\w*|medicines?|medications?|diagnos\w+|symptoms?|dosages?|doses?|prescri\w+|illness\w*"
        r"|disease\w*|treatments?"
        r"|side effects?|chest pain|medisin\w*|symptom\w*|dosering\w*|sykdom\w*|behandling\w*"
        r"|bivirkning\w*|resept\w*|brystsmerter",
        r"financ\w+|invest\w*|stocks?|shares|mortgages?|pensions?|retirement|tax(?:es)?|economic\w*"
        r"|finans\w*|aksje\w*|boliglån\w*"
        r"|pensjon\w*|skatt\w*|økonomi\w*|fond",
        r"politic\w*|elections?|vote|voting|parties|government|parliament|politikk\w*|politisk\w*|valget"
        r"|stemme på|partie\w*|regjering\w*",
        r"religio\w*|church|faith|god|bible|koran|islam|christian\w*|relig\w*|kirke\w*|gud|bibel\w*|kristen\w*",
        r"weapons?|guns?|explosives?|bombs?|ammunition|våpen\w*|pistol\w*|bombe\w*|eksplosiv\w*",
    )
)
"""Subjects that constraints are often about, each by its words in both languages. A topic and a message of the same
subject touch, whatever their words are."""
_MIN_SHARE = 0.5
"""The share of a topic's own words that a message must have. Three of them always suffice."""
_ENDINGS = re.compile(
    r"(?:ations?|ations|ingly|ings?|edly|ed|ies|es|s|ly|al|ically|ical|ic|ene|ane|ers|er|en|et|a|e|te|t|y)$"
)


def is_identity_sensitive(message: str, *, topics: Iterable[str] = ()) -> bool:
    """Return whether a message asks who the assistant is, tries to make it leave its role or rules, or touches one
    of the persona's `topics`, which are its constraints, views and domains as texts.

    A topic is touched if the message has at least half of its own words or three of them, or if both are about law,
    medicine, money, politics, religion or weapons. Words that most messages have, such as "never" and "provide", do
    not count. Words are compared without their endings, in any script.
    """
    reading = read(message)
    if _IDENTITY.search(reading.prose):
        return True
    stems: frozenset[str] | None = None
    for topic in topics:
        wanted = _stems(topic)
        if wanted:
            stems = _find_stems(reading.prose) if stems is None else stems
            if len(wanted & stems) >= min(3, len(wanted) * _MIN_SHARE):
                return True
        if any(subject.search(reading.prose) for subject in _subjects(topic)):
            return True
    return False


@lru_cache(maxsize=256)
def _stems(topic: str) -> frozenset[str]:
    return _find_stems(topic[:2000].lower())


@lru_cache(maxsize=256)
def _subjects(topic: str) -> tuple[re.Pattern[str], ...]:
    return tuple(subject for subject in _DOMAINS if subject.search(topic[:2000].lower()))


def _find_stems(text: str) -> frozenset[str]:
    """Return the stems of the words of a text in lower case that are not common."""
    return frozenset(
        _ENDINGS.sub("", word) if len(word) > 5 else word.removesuffix("s")
        for word in _LETTERS.findall(text)
        if word not in _COMMON
    )
