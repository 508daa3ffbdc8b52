"""Templates that turn a transcript into one prompt: the texts around each message.

Source: ChatML as Qwen 2.5 and Hermes 3 use it; Llama 3's prompt format, 2024.
"""

import re
from collections.abc import Mapping

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.types import Message, Role


class PromptTemplate(Struct, frozen=True):
    """The texts around messages."""

    around: Mapping[Role, tuple[str, str]]
    """The texts before and after a message, by its role."""
    answer: str
    """The text after which the model's answer begins."""
    begin: str = ""
    stop: tuple[str, ...] = ()
    """Texts that end an answer, for engines that do not stop there by themselves."""
    marks: str = "(?!)"
    """A regular expression for what would begin or end a message. In messages that the model did not write, it is
    replaced by `instead`, so that a text cannot pass for a message."""
    instead: str = "&lt;"

    def write(self, message: Message) -> str:
        """Return the text of a message in the prompt."""
        before, after = self.around[message.role]
        content = message.content
        if message.role is not Role.ASSISTANT:
            content = re.sub(self.marks, self.instead, content)
        return f"{before}{content}{after}"


def _headed(begin: str, middle: str, end: str, tool: str = "tool") -> dict[Role, tuple[str, str]]:
    names = {role: role.value for role in Role} | {Role.TOOL: tool}
    return {role: (f"{begin}{name}{middle}", end) for role, name in names.items()}


TEMPLATES: dict[str, PromptTemplate] = {
    "chatml": PromptTemplate(
        _headed("<|im_start|>", "\n", "<|im_end|>\n"),
        "<|im_start|>assistant\n",
        stop=("<|im_end|>",),
        marks=r"<(?=\|(?:im_start|im_end|endoftext)\|>)",
    ),
    "llama3": PromptTemplate(
        _headed("<|start_header_id|>", "<|end_header_id|>\n\n", "<|eot_id|>", "ipython"),
        "<|start_header_id|>assistant<|end_header_id|>\n\n",
        "<|begin_of_text|>",
        ("<|eot_id|>",),
        r"<(?=\|(?:start_header_id|end_header_id|eot_id|eom_id|begin_of_text|end_of_text|python_tag)\|>)",
    ),
    "plain": PromptTemplate(
        {
            Role.SYSTEM: ("", "\n\n"),
            Role.USER: ("User: ", "\n\n"),
            Role.ASSISTANT: ("Assistant: ", "\n\n"),
            Role.TOOL: ("Tool: ", "\n\n"),
        },
        "Assistant:",
        stop=("\nUser:",),
        marks=r"(?m)^(?=(?:System|User|Assistant|Tool):)",
        instead=" ",
    ),
    "none": PromptTemplate(dict.fromkeys(Role, ("", "")), ""),
}
"""The templates by name. `plain` is for base models; `none` sends only the contents."""


def find_template(name: str) -> PromptTemplate:
    """Return the template called `name`. Raises: `ConfigError` for an unknown name."""
    if name not in TEMPLATES:
        raise ConfigError(f"unknown prompt template {name!r}; the templates are {', '.join(TEMPLATES)}")
    return TEMPLATES[name]
