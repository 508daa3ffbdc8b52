"""Prompts compared with those of transformers, which has the reference implementation of chat templates."""

import pytest
from tests.renderers.folders import TEMPLATES, make_folder
from tests.renderers.test_renderers import ASKED, CALL, MORE, RESULT, SYSTEM, TOOLS

from treadle.core.types import Message, Role
from treadle.formats.scanner.parsed import to_openai
from treadle.renderers.answer_reading import to_wire
from treadle.renderers.registry import load_renderer

SAID = Message(Role.ASSISTANT, "I look.", (CALL,), reasoning="Hm.")
TALKS = (
    [ASKED],
    [SYSTEM, ASKED],
    [SYSTEM, ASKED, SAID, RESULT],
    [SYSTEM, ASKED, SAID, RESULT, Message(Role.ASSISTANT, "Rain.", reasoning="So."), MORE],
)


@pytest.mark.xdist_group("training")
@pytest.mark.parametrize("template", [name for name in TEMPLATES if name != "phi"])
def test_a_prompt_is_that_of_transformers(tmp_path, template):
    transformers = pytest.importorskip("transformers")
    folder = make_folder(tmp_path / template, template)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(folder)
    ours = load_renderer(f"hf:{folder}?format={TEMPLATES[template][3]}")
    for messages in TALKS:
        for tools in ((), TOOLS):
            made = theirs.apply_chat_template(
                [to_wire(message) for message in messages],
                tools=[to_openai(tool) for tool in tools] or None,
                add_generation_prompt=True,
                return_dict=False,
            )
            assert ours.render(messages, tools) == made
