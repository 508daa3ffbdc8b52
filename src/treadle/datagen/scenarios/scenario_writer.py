"""The scenario writer: a model that writes the user's first message of a sample, given the tools and files.

Its answer is checked. If the answer has a fault, the writer is told the fault and asked again, in the same session.
"""

from collections.abc import Mapping, Sequence

from treadle.core.texts.documents import read_data
from treadle.datagen.quality.exchanges import count_words
from treadle.datagen.quality.languages import pattern
from treadle.datagen.scenarios.scenario import Environment, Kind, SampleSpec, Scenario

MAX_TRIES = 3
"""How often the writer is asked before the sample fails."""

PROMPTS: Mapping[str, Mapping[str, str]] = read_data("treadle.datagen", "prompts")
"""What the models of a generation are told."""


def find_scenario_faults(
    written: Scenario, spec: SampleSpec, environment: Environment, least_words: int = 1
) -> tuple[str, ...]:
    """Return the faults of a scenario, one sentence each; empty if it can be used. Messages of fewer than
    `least_words` words are rejected by a filter."""
    message = written.message
    if not message:
        return ("The message is empty.",)
    faults = []
    if count_words(message) < least_words:
        faults.append(f"The message {message!r} is too short; write what this user would send.")
    known = f"{environment.task_input}"
    for text in dict.fromkeys((message, written.withheld)):
        if (place := find_placeholder(text)) is not None and place not in known:
            faults.append(f"{place!r} is a placeholder; write a concrete value.")
    if spec.kind is Kind.MISSING_PARAMETER:
        withheld = written.withheld
        if not withheld:
            faults.append("`withheld` is empty; it must contain the fact that the message lacks.")
        elif withheld.casefold() in message.casefold():
            faults.append(f"The message already tells {withheld!r}, which has to be withheld.")
    if spec.kind not in (Kind.RECOVERY, Kind.MISSING_PARAMETER, Kind.REFUSAL):
        faults += [
            f"There is no file {path!r}; the files are in the facts."
            for path in missing_files(message, environment, [*written.new_files, known])
        ]
    return tuple(faults)


_PLACEHOLDER = pattern("placeholders", "scenario")


def find_placeholder(text: str) -> str | None:
    """Return the first placeholder in a text, such as `{{name}}` or `<your file>`; `None` if there is none."""
    found = _PLACEHOLDER.search(text)
    return None if found is None else found[0]


_FILE, _EXTENSION, _PRODUCT = [pattern("files", name) for name in ("name", "extension", "product")]


def missing_files(message: str, environment: Environment, allowed: Sequence[str]) -> list[str]:
    """Return the files that a message names and that do not exist. `allowed` are texts whose files are also
    accepted.

    A name without its folder counts as a file of any folder. Without initial files nothing is missing.
    """
    paths = environment.files
    if not paths:
        return []
    missing = []
    for name in dict.fromkeys(_FILE.findall(message)):
        if name in paths or any(name in text for text in allowed) or _PRODUCT.fullmatch(name):
            continue
        extension = f".{name.rpartition('.')[2]}"
        is_file = _EXTENSION.fullmatch(extension) or any(path.endswith(extension) for path in paths)
        # The name of a file may have spaces, so that only its end looks like a name.
        is_known = any(path.endswith(name) and path.rpartition("/")[2] in message for path in paths)
        if is_file and not is_known:
            missing.append(name)
    return missing
