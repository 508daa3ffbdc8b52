"""The texts of token ids: of single tokens, and the decoders of a run's renderers."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TypeAlias

from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.types import Json
from treadle.renderers.registry import load_renderer

Decode: TypeAlias = Callable[[Sequence[int]], str]
"""A function that returns the text of ids, special tokens included, such as `Renderer.decode`."""
Decoders: TypeAlias = Decode | Mapping[str, Decode] | None
"""A function for all ids, or functions by the fingerprint of the tokenizer; `None`: ids cannot be decoded."""

_HOLE = "\ufffd"
_MOST = 8
"""The number of tokens without a whole character after which their text is used unchanged."""


def find_decode(decoders: Decoders, tokenizer: str | None) -> Decode | None:
    """Return the function that decodes the ids of a tokenizer; `None` if no decoder is known for it."""
    if isinstance(decoders, Mapping):
        return None if tokenizer is None else decoders.get(tokenizer)
    return decoders


def split_text(ids: Sequence[int], decode: Decode) -> list[str]:
    """Return the text of each token. Joined, they are the text of all tokens. If several tokens make one
    character, the text of the last one has the character.

    The text of a character that several tokens make is at the last of them.
    """
    found: list[str] = []
    waiting: list[int] = []
    for item in ids:
        waiting.append(item)
        text = decode(waiting)
        if text.endswith(_HOLE) and len(waiting) < _MOST:
            found.append("")
            continue
        found.append(text)
        waiting = []
    if waiting:
        found[-1] = decode(waiting)
    return found


def load_decoders(bodies: Iterable[e.DurableBody]) -> dict[str, Decode]:
    """Return the decoders of the renderers that a run's agents name, by their fingerprints.

    Renderers whose files are not here are left out. Loading one reads files that the run names, so ask
    `Journal.is_trusted` first.
    """
    names: set[str] = set()
    for body in bodies:
        spec = body.spec if isinstance(body, e.RunStarted) else None
        spec = body.agent if isinstance(body, e.RunResumed) else spec
        if spec is not None:
            names.update(_find_names(spec.model.settings))
    found: dict[str, Decode] = {}
    for name in names:
        try:
            renderer = load_renderer(name)
        except ConfigError:
            continue
        found[renderer.fingerprint] = renderer.decode
    return found


def _find_names(settings: Json) -> Iterable[str]:
    """Yield the names of renderers in the settings of a model and of the models within it."""
    values = settings.items() if isinstance(settings, dict) else ()
    for key, value in values:
        if key == "renderer" and isinstance(value, str):
            yield value
        for inner in value if isinstance(value, list) else [value]:
            yield from _find_names(inner)
