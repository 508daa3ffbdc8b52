"""Messages that need no thinking: thanks, agreement, and requests to repeat the last answer in another form.

A message counts only if its words are covered completely by known phrases.
"""

from itertools import product

from treadle.routing.judging.reading import is_own, read

_MAX_CHARS = 200
_LONGEST = 6
"""The number of words of the longest phrase."""


def _phrases(*texts: str) -> frozenset[tuple[str, ...]]:
    """Return the phrases of texts that separate them by commas; `a/b c` stands for `a c` and `b c`."""
    found: set[tuple[str, ...]] = set()
    for text in ",".join(texts).split(","):
        choices = [word.split("/") for word in text.split()]
        found.update(tuple(word for word in choice if word != "-") for choice in product(*choices))
    return frozenset(found)


_GRATITUDE = _phrases(
    "thanks, thank you, thx, ty, ta, ta very much, that's everything,"
    " that is everything, that answers my question,"
    "det svarer på spørsmålet mitt, cheers, much appreciated, appreciate it, i appreciate it, bye,"
    "goodbye, good night,"
    "see you, have a nice/good/great/lovely/fine day/evening/weekend/one, many thanks, that's/thats all,"
    "that is all",
    "takk, tusen takk, mange takk, takkar, tusen takkar, hjertelig takk, takk skal du ha, ha det,"
    "ha det bra, god natt,"
    "snakkes, ha en fin/god dag/kveld/helg, god helg, det var alt, takk for nå",
)
_AGREEMENT = _phrases(
    "ok, okay, okey, k, kk, alright, all clear, no worries, no problem"
    " at all, agreed, yay, jess, lett, klart, all right, got it, gotcha,"
    " i see, makes/make sense, that makes sense,"
    "sounds/looks/all good, sounds/looks great/fine/right, good, great, perfect, noted, understood,"
    "nice, cool, awesome,"
    "excellent, wonderful, lovely, brilliant, fantastic, amazing, super, neat, fair enough,"
    "no problem, np, will do,"
    "good to know, i understand, good/nice/great job/work/one, nice one, well done, love it,"
    "i love it, exactly, hi, hello, hey,"
    "good morning/evening/afternoon, wow, haha, lol, works for me, that's it, lifesaver, legend,"
    "interesting, right,"
    "you're/youre great/awesome/amazing, you are great/awesome/amazing,"
    " you're the best, you are the best, you're/youre a star/legend/lifesaver,"
    "that's/thats/it's/that -/really/very/so/super/exactly/just great/perfect/helpful/good/fine/"
    "useful/clear/better/right/"
    "nice/awesome/excellent/lovely/it/kind/correct/clever/funny,"
    "that/this/it is/was/looks -/really/very/so/super/all great/perfect/helpful/good/fine/useful/"
    "clear/better/right/nice/"
    "awesome/excellent/lovely/wonderful/correct, that/this/it helps/helped/works/worked,"
    "what i needed, what i wanted,"
    "exactly what i needed/wanted, just what i needed/wanted,"
    "that's/thats/it's -/exactly/just what i needed/wanted",
    "greit, grei, den er grei/god, supert, flott, fint, bra, kjempebra, kjempefint, topp, perfekt,"
    "nydelig, herlig,"
    "skjønner, skjønte, forstått, forstår, forsto, notert, mottatt, jeg skjønner/forstår,"
    "da skjønner/forstår jeg,"
    "det/dette/den er/var/ser/ble/høres/hørtes -/helt/veldig/kjempe/så bra/fint/flott/greit/perfekt/"
    "nyttig/klart/"
    "hyggelig/supert/riktig/tydelig/topp/nydelig, det hjalp/hjelper/funker/fungerer/fungerte/stemmer,"
    "høres/hørtes/ser bra/fint/flott/greit ut, det høres/ser bra/fint/flott/greit ut, godt å vite,"
    "ingen problem, kult, rått, hei,"
    "hallo, heisann, god morgen/kveld/dag, morn, bra/godt jobbet, du er best/flink, genialt,"
    "fantastisk, stemmer, konge,"
    "greitt, skjønar, eg skjønar, interessant, akkurat, nettopp, akkurat det jeg trengte,"
    "det jeg trengte, kjekt",
)
_FILLER = _phrases(
    "so much, very much, a lot, a bunch, a million, a ton, again, for now, everyone, man, mate,"
    "buddy, friend, then, very, really, and, just, nothing"
    " else/more, i'm good, all, too, there, oh, ah, now, well, so, to you, from me, for your/the/all/"
    "that/this/everything,"
    "for all your/the, your, help, quick/fast/prompt/detailed/kind/clear answer/explanation/reply/"
    "response/help, answer, explanation, reply, info, information, time, response,"
    "clarification, summary, work, tip, tips, pointer, that, this, indeed, yeah, yep, yes, no, bye,"
    "today, day, nice, great",
    "så mye, for hjelpen/svaret/alt/det/nå/forklaringen/infoen/tipset/meg, for/et raskt/godt/"
    "fint svar, igjen, da, og, helt, veldig,"
    "kjempe, til deg, også, bare, nå, å, ja, jepp, jo, så, skal du ha, for i dag, i dag, hjelpa",
)
_LEAD = _phrases(
    "and, so, now, just, then, no, yes, nei, ja, please, ok, okay,"
    " great, thanks, hey, nice, but, can/could/would/"
    "will you, could you please, pls,"
    "og, så, nå, bare, takk, kan/kunne/vil du, vennligst, vær så snill, vær så snill og/å, fint,"
    "flott, men, hei"
)
_FORM_VERBS = (
    "rephrase/reformat/reword/summarise/summarize/repeat/shorten/condense/simplify/paraphrase/format/"
    "omformuler/oppsummer/"
    "oppsummere/omformulere/gjenta/forkort/forkorte/forenkle/reformuler/formater/kort/korte/say/"
    "re-phrase/re-format"
)
_FORM = _phrases(
    f"{_FORM_VERBS} that/this/it/det/dette/den/svaret",
    f"{_FORM_VERBS} your/the -/last/previous/latest answer/reply/response/message/paragraph",
    f"{_FORM_VERBS} det siste/forrige svaret/avsnittet/meldingen, {_FORM_VERBS} svaret ditt,"
    f"{_FORM_VERBS} ned svaret/det/dette",
    "si/say det/det litt, give/gi me/meg that/this/it/det, put/say that/this/it, forklar/forklare det/det litt,"
    "once more, en gang til, sum that/it/this up, skriv/skrive det/dette/den/svaret"
    " om, si det igjen, kort/korte det ned",
    "make that/this/it -/a/much bit/little/- shorter/briefer/simpler, make that/this/it more concise/brief,"
    "gjør/gjøre det/den/dette/svaret -/litt/mye kortere/enklere, shorter, kortere, shorter version,"
    "kortere versjon, tldr, tl dr",
)
_FORM_TAIL = _phrases(
    "again, once more, but, men, shorter, simpler, briefer, please,"
    " pls, in fewer/other/simpler/plain/simple words/terms/english,"
    "more briefly/simply, as bullet points,"
    "as bullets, as a list/table/paragraph, as a numbered/bulleted/bullet list, in a/one/two/three/1/"
    "2/3 table/list/sentence/sentences/bullets/"
    "paragraph/line/lines, in bullets, in bullet points, in a/one/two/three/four/five/3/"
    "5 bullet points, briefly, for me, thanks, thank you, to me, a bit, a little",
    "igjen, en gang til, er du snill, vær så snill, enklere, kortere, med andre/færre/enklere ord,"
    "som punktliste/liste/tabell/"
    "kulepunkter/punkter, som en punktliste/liste/tabell, i en/én/to/tre setning/setninger/tabell/"
    "punkter/kulepunkter, for meg, litt, kort",
)


def is_boilerplate(message: str, *, follows_question: bool = False) -> bool:
    """Return whether a message needs no thinking: it only thanks, greets, agrees, or asks for the last answer in
    another form.

    The whole message must say no more than that; "Great, now write a novel" is work. If the message
    `follows_question`, a question of the assistant, an agreement is an answer that may start work, so only thanks
    and goodbyes count.
    """
    if len(message) > _MAX_CHARS:
        return False
    reading = read(message)
    words = reading.words
    if not is_own(reading.prose):
        return False
    if not words:
        return bool(message.strip(" \t\r\n?!.,")) and not follows_question
    asked = _follow(words, _repeat(words, {0}, _LEAD), _FORM)
    if len(words) in _repeat(words, asked, _FORM_TAIL):
        return True
    known = _GRATITUDE if follows_question else _GRATITUDE | _AGREEMENT
    is_known = bool(_follow(words, set(range(len(words))), known))
    return is_known and len(words) in _repeat(words, {0}, _GRATITUDE | _AGREEMENT | _FILLER)


def _follow(words: tuple[str, ...], starts: set[int], phrases: frozenset[tuple[str, ...]]) -> set[int]:
    """Return the positions after one of the phrases that begins at one of the positions `starts`."""
    return {
        start + length
        for start in starts
        for length in range(1, min(_LONGEST, len(words) - start) + 1)
        if words[start : start + length] in phrases
    }


def _repeat(words: tuple[str, ...], starts: set[int], phrases: frozenset[tuple[str, ...]]) -> set[int]:
    """Return the positions after any number of the phrases, none included."""
    reached, new = set(starts), set(starts)
    while new:
        new = _follow(words, new, phrases) - reached
        reached |= new
    return reached
