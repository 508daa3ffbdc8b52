"""Read calls that have a head with the function's name, then JSON, then a closing tag.

DeepSeek, Kimi, Mistral and Functionary write calls in this way.
"""

from collections.abc import Sequence

from treadle.formats.scanner.base import resync
from treadle.formats.scanner.json_body import BadJson, NoCall, Wanted, after_space, read_arguments
from treadle.formats.scanner.markers import Reader


def read_headed(
    reader: Reader,
    start: int,
    position: int,
    name: str,
    closers: Sequence[str],
    openers: Sequence[str],
    *,
    call_id: str | None = None,
    needs_closer: bool = False,
    unwraps: bool = False,
) -> int:
    """Read the arguments of `name` at `position`, add the call, and return the position after it.

    The call begins at `start`. One of `closers` belongs to the call if it directly follows. With `unwraps`,
    if the only argument is `arguments` or `input` and it is an object, that object is used as the arguments.
    """
    text = reader.text
    at = after_space(text, position)
    has_fence = text.startswith("```", at)
    if has_fence:
        newline = text.find("\n", at, at + 20)
        at = after_space(text, newline + 1 if newline != -1 else at + 3)

    def fail(reason: str, reached: int) -> int:
        end = resync(reader, position, reached, closers, openers)
        reader.add_error(reason, start, end, name or None)
        return end

    if not name:
        return fail("the call has no function name", at)
    if text[at : at + 1] == '"':
        return _read_quoted(reader, start, at, name, closers, openers, call_id)
    if text[at : at + 1] != "{":
        return fail("the call is cut off" if at == len(text) else "the arguments are not a JSON object", at)
    try:
        end, value = reader.end_and_value(at)
    except BadJson as error:
        return fail(f"the arguments are not valid JSON: {error.reason}", error.position)
    body = text[at:end]
    after = after_space(text, end)
    if has_fence and text.startswith("```", after):
        end = after + 3
        after = after_space(text, end)
    for closer in closers:
        if text.startswith(closer, after):
            end = after + len(closer)
            break
    else:
        if after < len(text) and (needs_closer or _has_rest(reader, after, closers, openers)):
            return fail("the call contains more than JSON", after)
    try:
        arguments, words = read_arguments(body, name, value)
    except NoCall as error:
        reader.add_error(error.reason, start, end, name)
        return end
    if unwraps and len(arguments) == 1:
        inner = arguments.get("arguments", arguments.get("input"))
        if isinstance(inner, dict):
            from treadle.formats.scanner.json_body import raw_fields

            arguments, words = inner, next(iter(raw_fields(words).values()))
    reader.add_call(Wanted(name, arguments, words, call_id), start, end)
    return end


def _has_rest(reader: Reader, at: int, closers: Sequence[str], openers: Sequence[str]) -> bool:
    """Return whether a closer comes before the next call, so that the text at `at` belongs to this call."""
    ends = [found for closer in closers if (found := reader.find(closer, at)) != -1]
    begins = [found for opener in openers if (found := reader.find(opener, at)) != -1]
    return bool(ends) and min(ends) < min(begins, default=len(reader.text))


def _read_quoted(
    reader: Reader,
    start: int,
    at: int,
    name: str,
    closers: Sequence[str],
    openers: Sequence[str],
    call_id: str | None,
) -> int:
    """Read arguments that are a JSON string containing an object, and return the position after the call."""
    import json

    text = reader.text
    try:
        value, end = json.JSONDecoder().raw_decode(text, at)
        arguments, words = read_arguments(str(value), name)
    except (ValueError, NoCall) as error:
        reason = error.reason if isinstance(error, NoCall) else f"the arguments are not valid JSON: {error}"
        end = resync(reader, at, at + 1, closers, openers)
        reader.add_error(reason, start, end, name)
        return end
    after = after_space(text, end)
    for closer in closers:
        if text.startswith(closer, after):
            end = after + len(closer)
            break
    reader.add_call(Wanted(name, arguments, words, call_id), start, end)
    return end
