"""Read calls that have a head with the function's name, then JSON, then a closing tag.

DeepSeek, Kimi, Mistral and Functionary write calls in this way.
"""

from collections.abc import Sequence
from json import JSONDecoder

from treadle.formats.scanner.base import resync
from treadle.formats.scanner.json_body import (
    BadValue,
    NoCall,
    Wanted,
    after_space,
    raw_fields,
    read_arguments,
)
from treadle.formats.scanner.markers import FENCE, Reader, after_closer, after_fence


def read_headed(
    reader: Reader,
    start: int,
    position: int,
    name: str,
    closers: Sequence[str],
    openers: Sequence[str],
    *,
    call_id: str | None = None,
    unwraps: bool = False,
) -> int:
    """Read the arguments of `name` at `position`, add the call, and return the position after it.

    The call begins at `start`. One of `closers` belongs to the call if it directly follows. With `unwraps`,
    if the only argument is `arguments` or `input` and it is an object, that object is used as the arguments.
    """
    text = reader.text
    at = after_space(text, position)
    has_fence = text.startswith(FENCE, at)
    at = after_fence(text, at)

    def fail(reason: str, reached: int) -> int:
        end = resync(reader, position, reached, closers, openers)
        reader.add_error(reason, start, end, name or None)
        return end

    if not name:
        return fail("the call has no function name", at)
    is_quoted = text[at : at + 1] == '"'
    try:
        if is_quoted:
            value, end = JSONDecoder().raw_decode(text, at)
            arguments, words = read_arguments(str(value), name)
        elif text[at : at + 1] == "{":
            end, value = reader.end_and_value(at)
        else:
            return fail(
                "the call is cut off" if at == len(text) else "the arguments are not a JSON object", at
            )
    except BadValue as error:
        return fail(f"the arguments are not valid JSON: {error.reason}", error.position)
    except NoCall as error:
        return fail(error.reason, at + 1)
    except ValueError as error:
        return fail(f"the arguments are not valid JSON: {error}", at + 1)
    body = text[at:end]
    if has_fence:
        end = after_closer(text, end, (FENCE,))
    after = after_closer(text, end, closers)
    if after == end and not is_quoted:
        rest = after_space(text, end)
        stop = reader.find_first(closers, rest)
        # A closer before the next call shows that the text between belongs to this call.
        if rest < len(text) and stop < len(text) and stop < reader.find_first(openers, rest):
            return fail("the call contains more than JSON", rest)
    end = after
    try:
        if not is_quoted:
            arguments, words = read_arguments(body, name, value)
    except NoCall as error:
        reader.add_error(error.reason, start, end, name)
        return end
    if unwraps and len(arguments) == 1:
        inner = arguments.get("arguments", arguments.get("input"))
        if isinstance(inner, dict):
            arguments, words = inner, next(iter(raw_fields(words).values()))
    reader.add_call(Wanted(name, arguments, words, call_id), start, end)
    return end
