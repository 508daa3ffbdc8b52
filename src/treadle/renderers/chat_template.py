"""Chat templates in Jinja's sandbox, as Hugging Face's tokenizers have them.

Rendering is pure: a template gets the date only if the user gives one. Source: transformers 5.23, chat templates.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import date
from functools import partial
from typing import Any, NoReturn

from treadle.core.errors import ConfigError
from treadle.core.registry import require
from treadle.core.types import Json

_EXTRA = "train"


class ChatTemplate:
    """A chat template with the values that it is always given."""

    def __init__(self, source: str, values: Mapping[str, Json], *, today: str | None = None) -> None:
        """Compile a template.

        `values` are given to it at every rendering: its options, and special tokens such as `bos_token`. `today`
        is what it reads as the date, such as `2026-01-31`.
        Raises: `ConfigError` if the template cannot be compiled, or `today` is not a date.
        """
        jinja = require("jinja2", _EXTRA)
        sandbox = require("jinja2.sandbox", _EXTRA)
        environment = sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[require("jinja2.ext", _EXTRA).loopcontrols, _make_generation_tag()],
        )
        environment.filters["tojson"] = _to_json
        environment.globals["raise_exception"] = _refuse
        if today is not None:
            try:
                day = date.fromisoformat(str(today))
            except ValueError:
                raise ConfigError(f"{today!r} is not a date; write one such as 2026-01-31") from None
            environment.globals["strftime_now"] = day.strftime
        self._error = jinja.TemplateError
        try:
            self._render = environment.from_string(source).render
        except jinja.TemplateError as error:
            raise ConfigError(f"the chat template cannot be compiled: {error}") from None
        self._values = dict(values)
        self._parse = partial(environment.parse, source)

    def find_names(self) -> set[str]:
        """Return the names of the values that the template reads."""
        names: set[str] = require("jinja2.meta", _EXTRA).find_undeclared_variables(self._parse())
        return names

    def render(
        self,
        messages: Sequence[Mapping[str, Json]],
        tools: Sequence[Mapping[str, Json]],
        *,
        begins_answer: bool,
    ) -> str:
        """Return the text of a prompt; with `begins_answer` up to where the answer begins.

        Raises: `ConfigError` if the template refuses the messages or fails.
        """
        try:
            text: str = self._render(
                messages=messages,
                tools=tools or None,
                documents=None,
                add_generation_prompt=begins_answer,
                **self._values,
            )
        except _Refused as error:
            raise ConfigError(f"the chat template refuses these messages: {error}") from None
        except (self._error, TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            hint = "; give the date as ?date=2026-01-31" if "strftime_now" in str(error) else ""
            raise ConfigError(f"the chat template fails on these messages: {error}{hint}") from None
        return text


class _Refused(Exception):  # noqa: N818
    """Raised by a template that does not accept its messages."""


def _refuse(message: str) -> NoReturn:
    raise _Refused(message)


def _to_json(value: Json, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
    # Unlike Jinja's own filter, it does not escape for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)


def _make_generation_tag() -> Any:
    """Return an extension for the tag `generation`, which marks the tokens of answers and changes no text."""
    ext, nodes = require("jinja2.ext", _EXTRA), require("jinja2.nodes", _EXTRA)

    class GenerationTag(ext.Extension):  # type: ignore[misc, name-defined]
        tags = frozenset(("generation",))

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    return GenerationTag
