"""The conversion of a command's function to a form that typer reads: groups of options become single options.

A parameter whose type is an `OptionGroup` stands for all options of that group; the function gets one value.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from types import UnionType
from typing import Annotated, Any, NamedTuple, Self, Union, get_args, get_origin, get_type_hints

import msgspec
import typer
from msgspec import Struct

from treadle.cli.exit import ExitCode, allow_interrupts
from treadle.core.errors import ConfigError

_UNITS = {"_usd": "USD", "_seconds": "SECONDS"}


class OptionGroup(Struct, frozen=True, kw_only=True):
    """Several options that a command takes as one value. Each field is an option, as its annotation says."""

    @classmethod
    def parameters(cls) -> list[inspect.Parameter]:
        """Return one parameter for each option, as typer reads them."""
        kinds = get_type_hints(cls, include_extras=True)
        fields = msgspec.structs.fields(cls)
        return [make_parameter(field.name, kinds[field.name], field.default) for field in fields]

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Return the group's value from the parsed options. Raises: `ConfigError`."""
        return cls(**values)


class OptionHelp(NamedTuple):
    """The help of a field's option, and properties that do not follow from the field's name and type."""

    help: str
    names: tuple[str, ...] = ()
    """The option's names. Empty: `--` and the field's name without its unit."""
    metavar: str | None = None
    least: float | None = None
    most: float | None = None
    read: Callable[[Sequence[str]], Any] | None = None
    """A function that converts the texts of a repeatable option. `None`: the field's type says how."""


class FieldOptions:
    """One option for each field of a `Struct`, none of them required. An option that is not given is `None`."""

    def __init__(
        self, struct: type[Struct], rows: Mapping[str, OptionHelp], panel: str | None, *, is_all: bool = True
    ) -> None:
        """Make options. Without `is_all`, only the fields in `rows` are options."""
        self._struct = struct
        self._fields = {
            field.name: field for field in msgspec.structs.fields(struct) if is_all or field.name in rows
        }
        self._rows = rows
        self._panel = panel

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
        option = typer.Option(
            *self._names(name),
            metavar=row.metavar or metavar,
            help=text,
            min=row.least,
            max=row.most,
            rich_help_panel=self._panel,
        )
        return make_parameter(name, Annotated[kind | None, option], None)

    def _row(self, name: str) -> OptionHelp:
        return self._rows.get(name, OptionHelp(""))

    def _names(self, name: str) -> tuple[str, ...]:
        suffix = next((suffix for suffix in _UNITS if name.endswith(suffix)), "")
        flag = name.removesuffix(suffix).replace("_", "-")
        is_flag = self._kind(name)[0] is bool
        return self._row(name).names or ((f"--{flag}/--no-{flag}",) if is_flag else (f"--{flag}",))

    def _kind(self, name: str) -> tuple[Any, str | None]:
        """Return the type that typer parses, and the option's metavar."""
        plain = _plain_type(self._fields[name].type)
        if get_origin(plain) is tuple or self._row(name).read is not None:
            return list[str], "TEXT"
        if isinstance(plain, type) and issubclass(plain, StrEnum):
            return plain, "|".join(plain)
        known: dict[Any, str | None] = {int: "N", float: "NUMBER", str: "TEXT", bool: None}
        return (plain, known[plain]) if plain in known else (str, "JSON")

    def _read(self, name: str, value: Any) -> Any:
        row = self._row(name)
        if row.read is not None:
            return row.read(value)
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


def make_parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    """Return a keyword parameter that typer reads as an option."""
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def parameters_of(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return a function's parameters as keyword parameters, with each option group replaced by its options."""
    found: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if _is_group(parameter.annotation):
            found += parameter.annotation.parameters()
        else:
            found.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))
    return found


def as_command(function: Callable[..., int]) -> Callable[..., None]:
    """Return `function` for typer: with single options instead of groups, and its result as the exit code."""
    groups = {
        parameter.name: parameter.annotation
        for parameter in inspect.signature(function).parameters.values()
        if _is_group(parameter.annotation)
    }

    def command(**values: Any) -> None:
        allow_interrupts()
        for name, group in groups.items():
            own = [parameter.name for parameter in group.parameters()]
            values[name] = group.from_values({key: values.pop(key) for key in own})
        try:
            code = function(**values)
        except KeyboardInterrupt:
            from treadle.cli.terminal.output import print_interrupted

            print_interrupted("")
            code = ExitCode.INTERRUPTED
        if code:
            raise typer.Exit(code)

    command.__doc__ = split_docstring(function)[0]
    command.__annotations__ = {}
    command.__signature__ = inspect.Signature(parameters_of(function))  # type: ignore[attr-defined]
    return command


def split_docstring(function: Callable[..., Any]) -> tuple[str, list[str]]:
    """Return the text of a command's docstring, and the command lines below its `Examples:`."""
    text, _, examples = (inspect.getdoc(function) or "").partition("\n\nExamples:\n")
    return text, [line.strip() for line in examples.splitlines()]


def _is_group(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, OptionGroup)


def _plain_type(kind: Any) -> Any:
    """Return `kind` without `None`."""
    if get_origin(kind) not in (Union, UnionType):
        return kind
    kinds = [item for item in get_args(kind) if item is not type(None)]
    return kinds[0] if len(kinds) == 1 else kind
