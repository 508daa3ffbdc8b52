"""The mistakes that an oracle makes on purpose: calls that fail, do no harm, and can be corrected."""

import msgspec

from treadle.tasks.draw import fraction, pick
from treadle.tasks.solver import Call


def spoil(call: Call, key: str) -> tuple[str, str]:
    """Return the name and the arguments of `call` with a mistake in them. Equal keys give equal mistakes."""
    arguments = msgspec.json.encode(call.arguments).decode()
    kinds = ["tool", "json"]
    if call.arguments:
        kinds += ["missing", "type"]
    if call.path_argument is not None:
        kinds += ["path", "path"]
    kind = pick(kinds, key, "kind")
    if kind == "tool":
        return _misname(call.name, key), arguments
    if kind == "json":
        return call.name, arguments[: -1 - int(fraction(key, "cut") * min(4, len(arguments) - 2))]
    changed = dict(call.arguments)
    first = next(iter(changed))
    if kind == "missing":
        del changed[first]
    elif kind == "type":
        changed[first] = [changed[first]]
    else:
        path = call.path_argument or first
        changed[path] = misspell(str(changed[path]), key)
    return call.name, msgspec.json.encode(changed).decode()


def _misname(name: str, key: str) -> str:
    verb, _, noun = name.partition("_")
    return pick((f"{verb}{noun.title()}", f"{noun}_{verb}", f"{verb}_{noun}_content"), key, "name")


def misspell(path: str, key: str) -> str:
    """Return `path` with one letter of its file name doubled.

    Digits are not doubled, because the result could be the name of another file.
    """
    start = path.rfind("/") + 1
    letters = [index for index in range(start, len(path)) if path[index].isalpha()]
    if not letters:
        return path + "x"
    index = pick(letters, key, "letter")
    return path[:index] + path[index] + path[index:]
