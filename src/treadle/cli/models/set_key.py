"""`treadle models set-key`: stores an API key."""

import sys
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.options.complete import complete_provider
from treadle.cli.terminal.output import print_note
from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.models.config.presets import find_preset, provider_names
from treadle.models.config.stored_keys import delete_key, store_key, where_is_key

EXAMPLES = (
    "treadle models set-key openai",
    "pass show openai | treadle models set-key openai --file",
)


def set_key(
    provider: Annotated[
        str,
        typer.Argument(
            metavar="PROVIDER",
            help="A provider, or the name of an environment variable.",
            show_default=False,
            autocompletion=complete_provider,
        ),
    ],
    in_file: Annotated[
        bool, typer.Option("--file", help="Store it in a file of mode 0600, not in the system's keyring.")
    ] = False,
    is_deleted: Annotated[bool, typer.Option("--delete", help="Delete the stored key.")] = False,
) -> int:
    """Store the API key of a provider, in the system's keyring or in a file that only you can read.

    The key is typed at a prompt, or piped in. A key in the environment takes precedence over it.
    """
    variable = _find_variable(provider)
    if is_deleted:
        print_note(f"deleted {variable}" if delete_key(variable) else f"no key is stored for {variable}")
        return ExitCode.DONE
    key = _read_key(variable)
    if not key or not key.isprintable() or " " in key:
        raise ConfigError("the key is empty" if not key else "the key has blanks or control characters")
    print_note(f"stored {variable} in {store_key(variable, key, in_file=in_file)}")
    if where_is_key(variable) == "the environment":
        print_note(f"{variable} is also set in the environment, which takes precedence")
    return ExitCode.DONE


def _find_variable(provider: str) -> str:
    """Return the environment variable of a provider's key. Raises: `ConfigError` for an unknown provider."""
    if provider.isupper() and provider.replace("_", "").isalnum():
        return provider
    preset = find_preset(provider)
    if preset is None:
        known = provider_names()
        hint = did_you_mean(provider, known) or ";"
        raise ConfigError(f"unknown provider {provider!r}{hint} known are {', '.join(known)}")
    if preset.key_variable is None:
        raise ConfigError(f"the provider {provider!r} needs no key")
    return preset.key_variable


def _read_key(variable: str) -> str:
    if not sys.stdin.isatty():
        return sys.stdin.readline().strip()
    from getpass import getpass

    return getpass(f"{variable} (not shown): ").strip()
