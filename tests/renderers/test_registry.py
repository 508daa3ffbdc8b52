"""Names of renderers, their options, and what is wrong with them."""

from pathlib import Path

import pytest
from tests.renderers.folders import make_folder
from tests.renderers.kinds import make, write_config

from treadle.core.errors import ConfigError
from treadle.core.types import Message, Role, ToolCall, ToolSpec
from treadle.renderers.registry import load_renderer, locate

ASKED = Message(Role.USER, "Hi")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("chatlm", "unknown renderer 'chatlm'; did you mean 'chatml'"),
        ("chatml?", "the renderer 'chatml\\?' has options that cannot be read"),
        ("chatml?thinking=yes", "the option thinking is 'yes'; use none, open, closed"),
        (
            "chatml?think=open",
            "the renderer 'chatml\\?think=open' has no option 'think'; did you mean 'thinking'",
        ),
        ("chatml?format=hermess", "unknown format 'hermess'"),
        ("chatml:/nowhere/tokenizer.json", "cannot read '/nowhere/tokenizer.json'"),
        ("hf", "needs the folder of a tokenizer: hf:FOLDER"),
        ("hf:/nowhere", "cannot read '/nowhere/tokenizer.json'"),
        ("family:qwen4", "there is no family 'qwen4'; did you mean 'qwen3"),
        ("family:qwen3@/nowhere", "cannot read '/nowhere/tokenizer.json'"),
    ],
)
def test_a_name_that_is_wrong(name, said):
    with pytest.raises(ConfigError, match=said):
        load_renderer(name)


def test_a_path_that_is_wrong_names_the_nearest_one(tmp_path):
    folder = make_folder(tmp_path / "worker", "qwen")
    for rest in ("hf:{}/worke", "family:qwen3@{}/worke"):
        with pytest.raises(ConfigError, match=r"; there is no folder '.*/worke'; did you mean 'worker'\?$"):
            load_renderer(rest.format(tmp_path))
    with pytest.raises(ConfigError, match=r"; did you mean 'worker'\?$"):
        load_renderer(f"chatml:{tmp_path}/worke")
    with pytest.raises(ConfigError, match=r"; did you mean 'tokenizer.json'"):
        load_renderer(f"chatml:{folder}/tokenizr.json")
    with pytest.raises(ConfigError, match=r"; give the folder of a tokenizer that has a tokenizer.json$"):
        load_renderer(f"hf:{tmp_path}")


def test_an_option_that_the_template_does_not_read_is_refused(tmp_path):
    folder = make_folder(tmp_path / "qwen", "qwen")
    with pytest.raises(ConfigError, match=r"has no option 'enable_thinkin'; did you mean 'enable_thinking'"):
        load_renderer(f"hf:{folder}?enable_thinkin=false")
    with pytest.raises(ConfigError, match=r"has no option 'formt'; did you mean 'format'"):
        load_renderer(f"hf:{folder}?formt=hermes")
    with pytest.raises(ConfigError, match="has no option 'messages'"):
        load_renderer(f"hf:{folder}?messages=1")


def test_paths_are_made_absolute(tmp_path):
    assert locate("hf:./qwen?a=1", tmp_path) == f"hf:{tmp_path}/qwen?a=1"
    assert locate("hf:/models/qwen", tmp_path) == "hf:/models/qwen"
    assert locate("chatml:a.json", tmp_path) == f"chatml:{tmp_path}/a.json"
    assert locate("family:qwen3@a", tmp_path) == f"family:qwen3@{tmp_path}/a"
    assert locate("hf:a") == f"hf:{Path.cwd()}/a"
    for name in ("chatml", "chatml?thinking=open", "family:qwen3", "family:Qwen/Qwen3-8B", "mine:a"):
        assert locate(name, tmp_path) == name


def test_a_family_whose_tokenizer_is_another(tmp_path):
    folder = make_folder(tmp_path / "llama", "llama")
    with pytest.raises(ConfigError, match=r"cannot be made: .*im_start"):
        load_renderer(f"family:qwen3@{folder}")


def test_options_reach_the_template(tmp_path):
    folder = make_folder(tmp_path / "qwen", "qwen")
    plain, without = (load_renderer(f"hf:{folder}{query}") for query in ("", "?enable_thinking=false"))
    assert plain.fingerprint != without.fingerprint
    assert without.decode(without.render([ASKED], ())).endswith("assistant\n<think>\n\n</think>\n\n")
    assert not without.begins_in_reasoning


def test_the_same_files_elsewhere_are_the_same_renderer(tmp_path):
    one, other = (load_renderer(f"hf:{make_folder(tmp_path / name, 'qwen')}") for name in ("a", "b"))
    assert one.fingerprint == other.fingerprint


def test_a_template_that_needs_a_date(tmp_path):
    folder = make_folder(tmp_path / "dated", "phi")
    source = (
        "{{- strftime_now('%d %B %Y') -}}{%- for m in messages -%}{{- m.content + '<|end|>' -}}{%- endfor -%}"
    )
    write_config(folder, chat_template=source)
    with pytest.raises(ConfigError, match=r"give the date as \?date=2026-01-31"):
        load_renderer(f"hf:{folder}?format=hermes").render([ASKED], ())
    dated = load_renderer(f"hf:{folder}?format=hermes&date=2026-01-31")
    assert dated.decode(dated.render([ASKED], ())) == "31 January 2026Hi<|end|>"
    with pytest.raises(ConfigError, match="'today' is not a date"):
        load_renderer(f"hf:{folder}?format=hermes&date=today")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("{% for", "cannot be compiled"),
        ("{{ messages[0].__class__.__mro__[1].__subclasses__() }}<|end|>", "fails on these messages.*unsafe"),
        ("{{ raise_exception('No.') }}", "refuses these messages: No."),
    ],
)
def test_a_template_that_is_wrong_or_hostile(tmp_path, source, said):
    folder = make_folder(tmp_path / "bad", "phi")
    write_config(folder, chat_template=source)
    with pytest.raises(ConfigError, match=said):
        load_renderer(f"hf:{folder}?format=hermes").render([ASKED], ())


def test_a_tokenizer_without_a_template(tmp_path):
    folder = make_folder(tmp_path / "none", "phi")
    write_config(folder, chat_template=None)
    with pytest.raises(ConfigError, match="has no chat template"):
        load_renderer(f"hf:{folder}?format=hermes")
    (folder / "chat_template.jinja").write_text("{{ messages[0].content }}<|end|>")
    assert load_renderer(f"hf:{folder}?format=hermes").name


def test_a_template_whose_format_is_not_known(tmp_path):
    folder = make_folder(tmp_path / "phi", "phi")
    with pytest.raises(ConfigError, match=r"cannot tell which format .*\?format=NAME"):
        load_renderer(f"hf:{folder}")


def test_a_user_may_have_the_thinking_left_out(tmp_path):
    """With `keeps_thinking=false` a new turn is rendered as the template does; within a turn the ids stay."""
    folder = make_folder(tmp_path / "qwen", "qwen")
    result = Message(Role.TOOL, "rain", call_id="c", name="weather")
    for name in (f"hf:{folder}?keeps_thinking=false", "chatml?keeps_thinking=false"):
        renderer = load_renderer(name)
        prior = [*renderer.render([ASKED], ()), *renderer.encode("<think>\nHm.\n</think>\n\nYes.")]
        assert renderer.bridge(prior, [ASKED], (), is_cut=True) is None
        assert renderer.bridge(prior, [result], (), is_cut=True) is not None
        said = Message(Role.ASSISTANT, "Yes.", reasoning="Hm.")
        assert "Hm." not in renderer.decode(renderer.render([ASKED, said, ASKED], ()))
        assert "Hm." in renderer.decode(renderer.render([ASKED, said], ()))


def test_calls_reach_the_template_as_objects_and_as_text():
    renderer = make("hf:qwen")
    calls = (ToolCall("a", "add", '{"b": 1, "a": 2}'), ToolCall("b", "add", '{"b": 1,'))
    text = renderer.decode(renderer.render([ASKED, Message(Role.ASSISTANT, "", calls)], ()))
    assert '{"name": "add", "arguments": {"b": 1, "a": 2}}' in text
    assert '{"name": "add", "arguments": {"b": 1,}' in text


def test_chatml_keeps_the_text_of_an_answer_that_it_would_write_otherwise():
    from treadle.core.types import FinishReason

    renderer = make("chatml")
    tool = ToolSpec("add", "Add.", {"type": "object", "properties": {}})
    usual = '<tool_call>\n{"name": "add", "arguments": {"b": 1}}\n</tool_call>'
    for text in (
        usual,
        usual.replace('": ', '" : '),
        "<tool_call>{oops</tool_call>",
        "<think>\nHm.\n</think>\n\nYes.",
    ):
        message = renderer.read(renderer.encode(text), (tool,), finish=FinishReason.STOP)
        assert (message.opaque is None) == (text in (usual, "<think>\nHm.\n</think>\n\nYes."))
        again = renderer.decode(renderer.render([ASKED, message], (tool,)))
        assert f"<|im_start|>assistant\n{text}<|im_end|>" in again
