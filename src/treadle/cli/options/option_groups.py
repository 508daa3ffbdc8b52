"""The conversion of a command's function to a form that typer reads.

`options.txt` says how each parameter is written on the command line. A parameter whose type is an `OptionGroup`
stands for all options of that group; the function gets one value.
"""

import gc
import inspect
import itertools
import re
import types
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

import msgspec
import typer
from msgspec import Struct

from treadle.cli.exit import ExitCode, allow_interrupts, end_at_interrupts
from treadle.cli.options.completion import COMPLETERS
from treadle.core.errors import ConfigError

_UNITS = {"_usd": "USD", "_seconds": "SECONDS"}


class OptionGroup(Struct, frozen=True, kw_only=True):
    """Several options that a command takes as one value. Each field is an option, as its annotation says."""

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """Return one parameter for each option, as typer reads them."""
        kinds, owners = get_type_hints(cls), (cls.__name__, SHARED)
        fields = msgspec.structs.fields(cls)
        return [_declare(owners, field.name, kinds[field.name], field.default) for field in fields]

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Return the group's value from the parsed options. Raises: `ConfigError`."""
        return cls(**values)

    @property
    def given_values(self) -> dict[str, Any]:
        """The values that were given, by field; a path as text."""
        values = {
            name: value for name, value in msgspec.structs.asdict(self).items() if value not in (None, [])
        }
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}


class OptionRow(NamedTuple):
    """The declaration of one option or argument: a line of `options.txt`."""

    help: str = ""
    flags: tuple[str, ...] = ()
    """The option's names. Empty for an argument; the option of a field is then named after the field."""
    metavar: str | None = None
    properties: Mapping[str, str] = {}
    """`min`, `max`, `env`, `panel`, `complete`, `hidden` and `stdout`, as far as they are given."""

    def number(self, name: str) -> float | None:
        """Return the property `min` or `max`; `None` if it is not given."""
        text = self.properties.get(name)
        return None if text is None else float(text) if "." in text else int(text)

    def declare(self, name: str, kind: Any, default: Any) -> inspect.Parameter:
        """Return a keyword parameter of the type `kind` that typer reads as this option or argument."""
        complete = COMPLETERS.get(self.properties.get("complete", ""))
        help = _TAG.sub(r"\\[", self.help)
        if complete is not None and "{values}" in help:
            help = help.replace("{values}", ", ".join(complete("")))
        if self.flags:
            is_flag = kind in (bool, bool | None)
            declared: Any = typer.Option(
                *self.flags,
                metavar="" if is_flag else self.metavar,  # a flag takes no value
                help=help,
                min=self.number("min"),
                max=self.number("max"),
                envvar=self.properties.get("env"),
                rich_help_panel=self.properties.get("panel"),
                hidden="hidden" in self.properties,
                autocompletion=complete,
                callback=self._check_out if "--out" in self.flags else None,
            )
        else:
            is_shown = default not in (None, inspect.Parameter.empty)
            declared = typer.Argument(
                metavar=self.metavar, help=help, show_default=is_shown, autocompletion=complete
            )
        return _make_parameter(name, Annotated[kind, declared], default)

    def _check_out(self, path: Path | None) -> Path | None:
        """Return the path that `--out` names; `None` for `-`, where that is standard output. Raises: `ConfigError`
        for `-` if the command writes to a file or folder alone."""
        if path != _DASH:
            return path
        if "stdout" not in self.properties:
            raise ConfigError(
                f"--out -: this command does not write to standard output; name a {self.metavar}"
            )
        return None


_DASH = Path("-")
_TAG = re.compile(r"\[(?=[a-z#/@])")
"""What begins a tag in the markup of rich, such as `[chat]`. Without a backslash, a help would not show it."""
SHARED = "shared"
"""The section of `options.txt` with the options that many commands have."""


@cache
def read_options() -> dict[str, dict[str, OptionRow]]:
    """Return the lines of `options.txt` by section and by the name of the parameter or field."""
    sections: dict[str, dict[str, OptionRow]] = {}
    section: dict[str, OptionRow] = {}
    for line in (Path(__file__).parent / "options.txt").read_text("utf-8").splitlines():
        if line.startswith("["):
            section = sections[line.strip("[]")] = {}
        elif line and not line.startswith("#"):
            name, _, rest = line.partition(":")
            declared, _, help = rest.partition(" | ")
            declared, _, given = declared.rstrip("}").partition("{")
            words = declared.split()
            flags = tuple(itertools.takewhile(lambda word: word.startswith("-"), words))
            properties = dict([item.partition("=")[::2] for item in given.split()])
            section[name] = OptionRow(help, flags, " ".join(words[len(flags) :]) or None, properties)
    return sections


def _find_row(owners: Sequence[str], name: str) -> OptionRow | None:
    """Return the row of a parameter in the first section that has one."""
    found = [rows[name] for owner in owners if name in (rows := read_options().get(owner, {}))]
    return found[0] if found else None


def declare_all(owner: str, kinds: Mapping[str, Any]) -> list[inspect.Parameter]:
    """Return options that are `None` if they are not given, from the section `owner` or the shared one."""
    return [_declare((owner, SHARED), name, kind, None) for name, kind in kinds.items()]


def _declare(owners: Sequence[str], name: str, kind: Any, default: Any) -> inspect.Parameter:
    row = _find_row(owners, name)
    return _make_parameter(name, kind, default) if row is None else row.declare(name, kind, default)


class FieldOptions:
    """One option for each field of a `Struct`, none of them required. An option that is not given is `None`.

    The section of `options.txt` with the struct's name has their help.
    """

    def __init__(
        self,
        struct: type[Struct],
        panel: str | None = None,
        readers: Mapping[str, Callable[[Sequence[str]], Any]] = {},
        *,
        is_all: bool = True,
    ) -> None:
        """Make options. `readers` convert the texts of repeatable options; for other fields, the type says how.

        Without `is_all`, only the fields in `options.txt` are options.
        """
        self._struct = struct
        self._rows = read_options().get(struct.__name__, {})
        fields = {field.name: field for field in msgspec.structs.fields(struct)}
        self._fields = fields if is_all else {name: fields[name] for name in self._rows}
        self._readers = readers
        self._panel = {} if panel is None else {"panel": panel}

    def parameters(self) -> list[inspect.Parameter]:
        """Return one parameter for each field, in the order of the fields."""
        return [self._parameter(name) for name in self._fields]

    def read(self, values: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields that were given, with values of their types. Raises: `ConfigError`."""
        given = {}
        for name in self._fields:
            value = values[name]
            # An option that may be given several times is an empty list if it was not given.
            if value is not None and value != []:
                given[name] = self._read(name, value)
        return given

    def _parameter(self, name: str) -> inspect.Parameter:
        default, row = self._fields[name].default, self._row(name)
        kind, metavar = self._kind(name)
        metavar = next((unit for suffix, unit in _UNITS.items() if name.endswith(suffix)), metavar)
        text = row.help
        if isinstance(default, int | float | StrEnum) and not isinstance(default, bool):
            shown = f"{default:g}" if isinstance(default, float) else default
            text = f"{text} Default: {shown}.".lstrip()
        properties = {**self._panel, **row.properties}
        whole = OptionRow(text, self._names(name), row.metavar or metavar, properties)
        return whole.declare(name, kind | None, None)

    def _row(self, name: str) -> OptionRow:
        return self._rows.get(name, OptionRow())

    def _names(self, name: str) -> tuple[str, ...]:
        suffix = next((suffix for suffix in _UNITS if name.endswith(suffix)), "")
        flag = name.removesuffix(suffix).replace("_", "-")
        is_flag = self._kind(name)[0] is bool
        return self._row(name).flags or ((f"--{flag}/--no-{flag}",) if is_flag else (f"--{flag}",))

    def _kind(self, name: str) -> tuple[Any, str | None]:
        """Return the type that typer parses, and the option's metavar."""
        plain = _plain_type(self._fields[name].type)
        if name in self._readers:
            return list[str], "TEXT"
        if get_origin(plain) is tuple:
            kind = get_args(plain)[0]
            return types.GenericAlias(list, (kind,)), "TEXT" if kind is str else "|".join(kind)
        if isinstance(plain, type) and issubclass(plain, StrEnum):
            return plain, "|".join(plain)
        known: dict[Any, str | None] = {int: "N", float: "NUMBER", str: "TEXT", bool: None}
        return (plain, known[plain]) if plain in known else (str, "JSON")

    def _read(self, name: str, value: Any) -> Any:
        if name in self._readers:
            return self._readers[name](value)
        if isinstance(value, list):
            return tuple(value)
        try:
            if self._kind(name) == (str, "JSON"):
                value = msgspec.json.decode(value, type=self._fields[name].type)
            # A value out of range is refused by the struct itself.
            self._struct(**{name: value})
        except (msgspec.DecodeError, UnicodeError, ConfigError) as error:
            raise ConfigError(f"{self._names(name)[0]} {value!r}: {error}") from None
        return value


class FieldGroup(OptionGroup, frozen=True, kw_only=True):
    """The options for the fields of a struct, as one value."""

    FIELDS: ClassVar[FieldOptions]
    given: Mapping[str, Any] = {}
    """The fields that were given, with their values."""

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        return cls.FIELDS.parameters()

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        return cls(given=cls.FIELDS.read(values))


def _make_parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _options_of(function: Callable[..., Any]) -> dict[str, list[inspect.Parameter]]:
    """Return the options for each parameter of a function: those of its group, or one, as keyword parameters. A
    parameter is declared in the section `module:function` of `options.txt`, in that of its module, or in the shared
    one."""
    module = function.__module__.removeprefix("treadle.cli.")
    owners = (f"{module}:{function.__name__}", module, SHARED)
    return {
        name: parameter.annotation.parameters()
        if _is_group(parameter.annotation)
        else [_declare(owners, name, parameter.annotation, parameter.default)]
        for name, parameter in inspect.signature(function).parameters.items()
    }


def as_command(function: Callable[..., int | None]) -> Callable[..., None]:
    """Return `function` for typer: with single options instead of groups, and its result as the exit code."""
    options = _options_of(function)
    groups = {
        name: (parameter.annotation, [option.name for option in options[name]])
        for name, parameter in inspect.signature(function).parameters.items()
        if _is_group(parameter.annotation)
    }

    def command(**values: Any) -> None:
        try:
            allow_interrupts()
            gc.freeze()
            gc.enable()
            for name, (group, own) in groups.items():
                values[name] = group.from_values({key: values.pop(key) for key in own})
            code = function(**values)
        except KeyboardInterrupt:
            end_at_interrupts()  # another one, while this one is told, would end without a word
            from treadle.cli.terminal.output import print_interrupted

            print_interrupted("")
            code = ExitCode.INTERRUPTED
        if code:
            raise typer.Exit(code)

    command.__doc__ = split_docstring(function)[0]
    command.__annotations__ = {}
    command.__signature__ = inspect.Signature(list(itertools.chain(*options.values())))  # type: ignore[attr-defined]
    return command


def split_docstring(function: Callable[..., Any]) -> tuple[str, list[str]]:
    """Return the text of a command's docstring, and the command lines below its `Examples:`.

    Each paragraph is one line, which typer breaks to the width of the terminal; lists keep their lines.
    """
    text, _, examples = (inspect.getdoc(function) or "").partition("\n\nExamples:\n")
    paragraphs = [
        item if item.startswith(("- ", "  ")) else " ".join(item.split()) for item in text.split("\n\n")
    ]
    return "\n\n".join(paragraphs), [line.strip() for line in examples.splitlines()]


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, OptionGroup)


def _plain_type(kind: Any) -> Any:
    """Return `kind` without `None`."""
    if get_origin(kind) not in (Union, types.UnionType):
        return kind
    kinds = [item for item in get_args(kind) if item is not type(None)]
    return kinds[0] if len(kinds) == 1 else kind
