"""What models really write: good calls, and the malformed ones that were seen in the wild."""

import pytest

from treadle.core.errors import ConfigError
from treadle.formats import FORMATS, IncrementalParser, detect, parse

TOOLS = [
    {
        "name": "f",
        "parameters": {
            "properties": {
                "a": {"type": "integer"},
                "s": {"type": "string"},
                "b": {"type": "boolean"},
                "o": {"type": "object"},
            }
        },
    }
]
CASES = [
    # format, text, calls, content, reasoning, errors
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>',
        [("f", {"a": 1})],
        "",
        None,
        [],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "parameters": {"a":1}}</tool_call>',
        [("f", {"a": 1})],
        "",
        None,
        [],
    ),
    ("hermes", '<tool_call>{"name": "f"}</tool_call>', [], "", None, ["there are no arguments"]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": "x\ny"}}</tool_call><tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
        [("f", {"a": 1})],
        "",
        None,
        ["not valid JSON: '\\n' must be escaped within a string"],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1,}}</tool_call>',
        [],
        "",
        None,
        ["not valid JSON: expecting property name enclosed in double quotes at character 35"],
    ),
    (
        "hermes",
        "<tool_call>{'name': 'f', 'arguments': {}}</tool_call>",
        [],
        "",
        None,
        ['not valid JSON: "\'" cannot stand there'],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": True}}</tool_call>',
        [],
        "",
        None,
        ["not valid JSON: 'T' cannot stand there"],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1}}}</tool_call>',
        [],
        "",
        None,
        ["there is more than JSON in it"],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1}</tool_call>',
        [],
        "",
        None,
        ["not valid JSON: '<' cannot stand there"],
    ),
    (
        "hermes",
        '<tool_call>\n<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>',
        [("f", {"a": 1})],
        "",
        None,
        [],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1}}\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
        [("f", {"a": 1}), ("f", {"a": 1})],
        "",
        None,
        [],
    ),
    ("hermes", '</think>{"name": "f", "arguments": {"a": 1}}</tool_call>', [("f", {"a": 1})], "", None, []),
    (
        "hermes",
        '{"name": "f", "arguments": {"a": 1}}',
        [],
        '{"name": "f", "arguments": {"a": 1}}',
        None,
        ["a call without its tags"],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1}}\n{"name": "f", "arguments": {"a": 1}}</tool_call>',
        [("f", {"a": 1}), ("f", {"a": 1})],
        "",
        None,
        [],
    ),
    (
        "hermes",
        '<tool_call>[{"name": "f", "arguments": {"a": 1}}, {"name": "f", "arguments": {"a": 1}}]</tool_call>',
        [("f", {"a": 1}), ("f", {"a": 1})],
        "",
        None,
        [],
    ),
    (
        "hermes",
        '<tool_call>\n```json\n{"name": "f", "arguments": {"a": 1}}\n```\n</tool_call>',
        [("f", {"a": 1})],
        "",
        None,
        [],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n<tool_response>\nx\n</tool_response>',
        [("f", {"a": 1})],
        "<tool_response>\nx\n</tool_response>",
        None,
        [],
    ),
    (
        "hermes",
        "<tool_call><function=f>\n<parameter=a>\n1\n</parameter>\n</function></tool_call>",
        [("f", {"a": "1"})],
        "",
        None,
        [],
    ),
    (
        "hermes",
        "<|tool_call_start|>[f(a=1)]<|tool_call_end|>",
        [],
        "<|tool_call_start|>[f(a=1)]<|tool_call_end|>",
        None,
        [],
    ),
    (
        "hermes",
        '<think>I could <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call> but no</think>Hello',
        [],
        "Hello",
        'I could <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call> but no',
        [],
    ),
    (
        "hermes",
        '<think>hm <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
        [("f", {"a": 1})],
        "",
        "hm",
        [],
    ),
    (
        "hermes",
        'hm <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call> no</think>Hello',
        [],
        "Hello",
        'hm <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call> no',
        [],
    ),
    (
        "hermes",
        '```\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n```\nand <tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
        [("f", {"a": 1})],
        '```\n<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>\n```\nand ',
        None,
        [],
    ),
    ("hermes", '<tool_call>{"name": "f", "arguments": {"a": 1}}', [("f", {"a": 1})], "", None, []),
    ("hermes", '<tool_call>{"name": "f", "argum', [], "", None, ["not valid JSON: it ends within a string"]),
    (
        "hermes",
        'a<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>b<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>c',
        [("f", {"a": 1}), ("f", {"a": 1})],
        "a\nb\nc",
        None,
        [],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 123456789012345678901234567890}}</tool_call>',
        [("f", {"a": 123456789012345678901234567890})],
        "",
        None,
        [],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": NaN}}</tool_call>',
        [],
        "",
        None,
        ["not valid JSON: 'N' cannot stand there"],
    ),
    ("hermes", '<tool_call>{"name": "", "arguments": {}}</tool_call>', [], "", None, ["there is no name"]),
    ("hermes", "<tool_call></tool_call>", [], "", None, ["there is no JSON object in it"]),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": null}</tool_call>',
        [],
        "",
        None,
        ["the arguments are no object, but null"],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"a": 1, "a": 2}}</tool_call>',
        [],
        "",
        None,
        ["not valid JSON: the key 'a' is there twice"],
    ),
    (
        "hermes",
        '<tool_call>{"name": "f", "arguments": {"x": "</tool_call><tool_call>"}}</tool_call>',
        [("f", {"x": "</tool_call><tool_call>"})],
        "",
        None,
        [],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n<parameter=s>\n5\n</parameter>\n</function>\n</tool_call>",
        [("f", {"a": 5, "s": "5"})],
        "",
        None,
        [],
    ),
    (
        "qwen3_coder",
        "<function=f>\n<parameter=a>\n7\n</parameter>\n<parameter=s>\n7\n</parameter>\n</function>\n</tool_call>",
        [("f", {"a": 7, "s": "7"})],
        "",
        None,
        [],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=a>\n5\n<parameter=s>\n5\n</parameter>\n</function>\n</tool_call>",
        [("f", {"a": 5, "s": "5"})],
        "",
        None,
        [],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=a\n5\n</parameter>\n<parameter=s>\n5\n</parameter>\n</function>\n</tool_call>",
        [("f", {"a": 5, "s": "5"})],
        "",
        None,
        [],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n<parameter=s>\n5\n</parameter>\n</tool_call>",
        [("f", {"a": 5, "s": "5"})],
        "",
        None,
        [],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n<parameter=s>\n5\n</parameter>",
        [("f", {"a": 5, "s": "5"})],
        "",
        None,
        [],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=a>\n['a']\n</parameter>\n<parameter=s>\n5\n</parameter>\n</function>\n</tool_call>",
        [],
        "",
        None,
        ["the value of 'a' is to be integer and is not valid JSON: expecting value at character 1"],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=b>\nTrue\n</parameter>\n</function>\n</tool_call>",
        [],
        "",
        None,
        ["the value of 'b' is to be boolean and is not valid JSON: expecting value at character 0"],
    ),
    (
        "qwen3_coder",
        '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>',
        [("f", {"a": 1})],
        "",
        None,
        [],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=a>\n5\n</parameter>\n<parameter=a>\n5\n</parameter>\n</function>\n</tool_call>",
        [],
        "",
        None,
        ["the parameter 'a' is there twice"],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=s>\nWrite <parameter=x>\n1\n</parameter> so & <b>\n</parameter>\n</function>\n</tool_call>",
        [("f", {"s": "Write <parameter=x>\n1\n</parameter> so & <b>"})],
        "",
        None,
        [],
    ),
    ("qwen3_coder", "<tool_call>\n<function=f>\n</function>\n</tool_call>", [("f", {})], "", None, []),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=s>\nabc</tool_call> def\n</parameter>\n</function>\n</tool_call>",
        [("f", {"s": "abc</tool_call> def"})],
        "",
        None,
        [],
    ),
    (
        "qwen3_coder",
        "<tool_call>\n<function=f>\n<parameter=s>\nabc",
        [],
        "",
        None,
        ["the value of 's' is cut off"],
    ),
    (
        "glm45",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>5</arg_value>\n<arg_key>s</arg_key>\n<arg_value>x\ny</arg_value>\n</tool_call>",
        [("f", {"a": 5, "s": "x\ny"})],
        "",
        None,
        [],
    ),
    (
        "glm45",
        "<tool_call>f\n<arg_key>a</arg_key>\n5</arg_value>\n<arg_key>s</arg_key>\n<arg_value>x\ny</arg_value>\n</tool_call>",
        [("f", {"a": 5, "s": "x\ny"})],
        "",
        None,
        [],
    ),
    (
        "glm45",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>5\n<arg_key>s</arg_key>\n<arg_value>x\ny</arg_value>\n</tool_call>",
        [("f", {"a": 5, "s": "x\ny"})],
        "",
        None,
        [],
    ),
    (
        "glm45",
        "<tool_call>fa</arg_key>\n<arg_value>5</arg_value>\n<arg_key>s</arg_key>\n<arg_value>x\ny</arg_value>\n</tool_call>",
        [],
        "",
        None,
        ["there is something other than a key in it"],
    ),
    (
        "glm45",
        "<tool_call>f\n<arg_key>a</arg_key></arg_key>\n<arg_value>5</arg_value>\n<arg_key>s</arg_key>\n<arg_value>x\ny</arg_value>\n</tool_call>",
        [("f", {"a": 5, "s": "x\ny"})],
        "",
        None,
        [],
    ),
    ("glm45", "<tool_call>f</tool_call>", [("f", {})], "", None, []),
    (
        "glm45",
        "<tool_call>f\\n<arg_key>a</arg_key>\\n<arg_value>5</arg_value>\\n<arg_key>s</arg_key>\\n<arg_value>x\\ny</arg_value>\\n</tool_call>",
        [("f", {"a": 5, "s": "x\\ny"})],
        "",
        None,
        [],
    ),
    (
        "glm45",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>5</arg_value>\n<arg_key>s</arg_key>\n<arg_value>see </arg_value> here</arg_value>\n</tool_call>",
        [("f", {"a": 5, "s": "see </arg_value> here"})],
        "",
        None,
        [],
    ),
    (
        "glm45",
        "<tool_call>f\n<arg_key>a</arg_key>\n<arg_value>5</arg_value>\n<arg_key>s</arg_key>\n<arg_value>x\ny</arg_value>\n",
        [("f", {"a": 5, "s": "x\ny"})],
        "",
        None,
        [],
    ),
    ("glm45", "<tool_call>f\n<arg_key>a</arg_key>\n<arg_v", [], "", None, ["the value of 'a' is cut off"]),
    (
        "mistral",
        '[TOOL_CALLS] [{"name": "f", "arguments": {"a": "]"}, "id": "abcdefghi"}]</s>',
        [("f", {"a": "]"})],
        "",
        None,
        [],
    ),
    (
        "mistral",
        '[TOOL_CALLS]f[ARGS]{"a":1}[TOOL_CALLS]g[ARGS]{}',
        [("f", {"a": 1}), ("g", {})],
        "",
        None,
        [],
    ),
    ("mistral", '[TOOL_CALLS]f[CALL_ID]123456789[ARGS]{"a":1}', [("f", {"a": 1})], "", None, []),
    ("mistral", 'text {x} [TOOL_CALLS]f{"a":1}', [("f", {"a": 1})], "text {x} ", None, []),
    (
        "mistral",
        '[TOOL_CALLS][{"name":"f","arguments":"{\\"a\\":1}"}] and more',
        [("f", {"a": 1})],
        " and more",
        None,
        [],
    ),
    ("mistral", '[TOOL_CALLS]{"name":"f","arguments":{}}', [("f", {})], "", None, []),
    ("mistral", "[TOOL_CALLS][TOOL_CALLS]f[ARGS]{}", [("f", {})], "", None, []),
    ("mistral", "[TOOL_CALLSf[ARGS]{}", [("f", {})], "", None, []),
    (
        "mistral",
        '[TOOL_CALLS]f[ARGS]{"a":',
        [],
        "",
        None,
        ["the arguments are not valid JSON: it ends in the middle"],
    ),
    ("mistral", "[THINK]hm[/THINK]Hi", [], "Hi", "hm", []),
    ("mistral", "[TOOL_CALLS][]", [], "", None, ["an empty list of calls"]),
    ("llama3_json", '{"name":"f","parameters":{"a":1}}', [("f", {"a": 1})], "", None, []),
    ("llama3_json", '{"name": "Alice"}', [], '{"name": "Alice"}', None, []),
    (
        "llama3_json",
        '{"name":"f","parameters":{"a":1}}; {"name":"g","parameters":{}}<|eom_id|>',
        [("f", {"a": 1}), ("g", {})],
        "",
        None,
        [],
    ),
    (
        "llama3_json",
        '{"name":"f","parameters":{}}\n{"name":"g","parameters":{}}',
        [("f", {}), ("g", {})],
        "",
        None,
        [],
    ),
    ("llama3_json", '<|python_tag|>{"name":"f","parameters":"{\\"a\\":1}"}', [("f", {"a": 1})], "", None, []),
    (
        "llama3_json",
        '<|python_tag|>brave_search.call(query="x")',
        [("brave_search", {"query": "x"})],
        "",
        None,
        [],
    ),
    ("llama3_json", "<|python_tag|>print(1)", [], "", None, ["code for an interpreter, and no call"]),
    (
        "llama3_json",
        '{"type":"function","function":{"name":"f","parameters":{"a":1}}}',
        [("f", {"a": 1})],
        "",
        None,
        [],
    ),
    (
        "llama3_json",
        "{'name': 'f', 'parameters': {}}",
        [],
        "",
        None,
        ['not valid JSON: "\'" cannot stand there'],
    ),
    (
        "llama3_json",
        '{"name":"f","parameters":{"a":True}}',
        [],
        "",
        None,
        ["not valid JSON: 'T' cannot stand there"],
    ),
    ("llama3_json", '<function=f>{"a":1}</function>', [("f", {"a": 1})], "", None, []),
    ("llama3_json", 'Sure. {"name":"f","parameters":{}}', [], 'Sure. {"name":"f","parameters":{}}', None, []),
    ("llama3_json", "[1,2]", [], "[1,2]", None, []),
    (
        "llama3_pythonic",
        "[f(a=-1, b='x', c=[1,{'k':None}]), g.h()]",
        [("f", {"a": -1, "b": "x", "c": [1, {"k": None}]}), ("g.h", {})],
        "",
        None,
        [],
    ),
    ("llama3_pythonic", "[f(1)]", [], "", None, ["an argument without a name"]),
    ("llama3_pythonic", "[f(a=9**9**9)]", [], "", None, ["'*' cannot stand there"]),
    ("llama3_pythonic", "[f(a='O'Brien')]", [], "", None, ["'B' cannot stand there"]),
    ("llama3_pythonic", "[f(a=1,a=2)]", [], "", None, ["the argument 'a' is there twice"]),
    ("llama3_pythonic", "<|python_start|>[f(a=1)]<|python_end|>", [("f", {"a": 1})], "", None, []),
    ("llama3_pythonic", "[1, 2]", [], "[1, 2]", None, []),
    ("llama3_pythonic", "hello", [], "hello", None, []),
    ("llama3_pythonic", "[f(a=g())]", [], "", None, ["'g())]' is no literal"]),
    ("llama3_pythonic", "[f(a=1), g(b=]", [("f", {"a": 1})], "", None, ["']' is no literal"]),
    ("llama3_pythonic", '[f(a="x\\n\\u00e9")]', [("f", {"a": "x\né"})], "", None, []),
    ("llama3_pythonic", "[f(a=true)]", [("f", {"a": True})], "", None, []),
    (
        "llama3_pythonic",
        "[f(a=1), g(2), h(c=3)]",
        [("f", {"a": 1}), ("h", {"c": 3})],
        "",
        None,
        ["an argument without a name"],
    ),
    (
        "deepseek_v3",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [("f", {"a": 1})],
        "",
        None,
        [],
    ),
    (
        "deepseek_v31",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n{"a": 1}\n```<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [("f", {"a": 1})],
        "",
        None,
        [],
    ),
    (
        "deepseek_v31",
        'hi<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a":1}<｜tool▁call▁end｜><｜tool▁calls▁end｜>',
        [("f", {"a": 1})],
        "hi",
        None,
        [],
    ),
    (
        "deepseek_v3",
        '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{"a":1}<｜tool▁call▁end｜>',
        [("f", {"a": 1})],
        "",
        None,
        [],
    ),
    (
        "deepseek_v31",
        '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{{"a":1}}<｜tool▁call▁end｜>',
        [],
        "",
        None,
        [
            "the arguments are not valid JSON: expecting property name enclosed in double quotes at character 1"
        ],
    ),
    (
        "deepseek_v31",
        '<｜tool▁call▁begin｜>f<｜tool▁sep｜>{"arguments":{"a":1}}<｜tool▁call▁end｜>',
        [("f", {"a": 1})],
        "",
        None,
        [],
    ),
    (
        "deepseek_v3",
        '<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>f\n```json\n{"a": 1}\n```<|tool_call_end|>',
        [("f", {"a": 1})],
        "",
        None,
        [],
    ),
    (
        "deepseek_v32",
        '<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n<｜DSML｜parameter name="a" string="false">5</｜DSML｜parameter>\n<｜DSML｜parameter name="s" string="true">5</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜function_calls>',
        [("f", {"a": 5, "s": "5"})],
        "",
        None,
        [],
    ),
    (
        "deepseek_v32",
        '<｜DSML｜toolcalls>\n<｜DSML｜tool name="f"><｜DSML｜parameter name="a">5</｜DSML｜parameter></｜DSML｜invoke>',
        [("f", {"a": 5})],
        "",
        None,
        [],
    ),
    (
        "kimi_k2",
        '<|tool_calls_section_begin|><|tool_call_begin|>functions.a.b-c:12<|tool_call_argument_begin|>{"a":1}<|tool_call_end|><|tool_calls_section_end|>',
        [("a.b-c", {"a": 1})],
        "",
        None,
        [],
    ),
    (
        "kimi_k2",
        '<|tool_call_begin|>3<|tool_call_argument_begin|>{"a":1}<|tool_call_end|>',
        [],
        "",
        None,
        ["there is no name of a function"],
    ),
    ("kimi_k2", '<|tool_call_begin|>f:0<|tool_call_argument_begin|>{"a":1}', [("f", {"a": 1})], "", None, []),
    (
        "kimi_k2",
        '<|tool_call_begin|>functions_f_1<|tool_call_argument_begin|>{"a":1}<|tool_call_end|>',
        [("functions_f_1", {"a": 1})],
        "",
        None,
        [],
    ),
    (
        "harmony",
        '<|channel|>analysis<|message|>think<|end|><|start|>assistant<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"a":1}<|call|>',
        [("f", {"a": 1})],
        "",
        "think",
        [],
    ),
    ("harmony", "<|channel|>final<|message|>Hello<|return|>", [], "Hello", None, []),
    (
        "harmony",
        'assistantcommentary to=functions.f json{"a":1}',
        [],
        'assistantcommentary to=functions.f json{"a":1}',
        None,
        ["a call whose special tokens were stripped"],
    ),
    (
        "harmony",
        '<|start|>assistant to=functions.f<|channel|>commentary<|message|>{"a":',
        [],
        "",
        None,
        ["the arguments are not valid JSON: it ends in the middle"],
    ),
    ("harmony", "<|channel|>analysis to=python code<|message|>print(1)<|call|>", [], "", "print(1)", []),
    ("harmony", '<|channel|>analysis to=functions.f code<|message|>{"a":1}', [("f", {"a": 1})], "", None, []),
    ("granite", '<|tool_call|>[{"name":"f","arguments":{"a":1}}]', [("f", {"a": 1})], "", None, []),
    (
        "granite",
        '<tool_call>[{"name":"f","arguments":{}},{"name":"g","arguments":{}}]',
        [("f", {}), ("g", {})],
        "",
        None,
        [],
    ),
    ("granite", '<function_call> {"name":"f","arguments":{}}', [("f", {})], "", None, []),
    ("granite", "Here is my thought process: hm Here is my response: Hi", [], "Hi", "hm", []),
    ("xlam", '```json\n[{"name":"f","arguments":{"a":1}}]\n```', [("f", {"a": 1})], "", None, []),
    ("xlam", "[1,2]", [], "[1,2]", None, []),
    ("xlam", '{"thought":"t","tool_calls":[{"name":"f","arguments":{}}]}', [("f", {})], "t", None, []),
    ("xlam", "[]", [], "[]", None, []),
    ("xlam", '<think>x</think>[{"name":"f","arguments":{}}]', [("f", {})], "", "x", []),
    (
        "minimax",
        '<tool_calls>\n{"name":"f","arguments":{"a":1}}\n{"name":"g","arguments":{}}}\n</tool_calls>',
        [("f", {"a": 1}), ("g", {})],
        "",
        None,
        ["not valid JSON: '}' begins no call"],
    ),
    (
        "minimax",
        "<minimax:tool_call>\n<invoke name='f'>\n<parameter name=a>5</parameter>\n</invoke>\n<invoke name=\"g\"></invoke></minimax:tool_call>",
        [("f", {"a": 5}), ("g", {})],
        "",
        None,
        [],
    ),
    ("functionary", 'all\nhi>>>f\n{"a":1}>>>g\n{}', [("f", {"a": 1}), ("g", {})], "hi", None, []),
    ("functionary", 'f\n{"a": ">>>x\\n"}', [("f", {"a": ">>>x\n"})], "", None, []),
    (
        "functionary",
        'hello <function=f>{"a":"</function>"}</function>',
        [("f", {"a": "</function>"})],
        "hello ",
        None,
        [],
    ),
    ("functionary", '<function=f({"a":1})>', [("f", {"a": 1})], "", None, []),
    ("functionary", "Just\ntext", [], "Just\ntext", None, []),
]


@pytest.mark.parametrize(("name", "text", "calls", "content", "reasoning", "errors"), CASES)
def test_what_was_seen(name, text, calls, content, reasoning, errors):
    tools = None if name in ("hermes", "mistral") else TOOLS
    found = parse(text, name, tools)
    assert [(call.name, call.arguments) for call in found.tool_calls] == calls
    assert (found.content, found.reasoning) == (content, reasoning)
    assert [error.reason for error in found.errors] == errors
    parser = IncrementalParser(name, tools)
    for char in text:
        parser.feed(char)
    assert parser.close() == found


def test_every_format_is_seen():
    assert {case[0] for case in CASES} == set(FORMATS)


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("Qwen/Qwen3-Coder-30B-A3B-Instruct", "qwen3_coder"),
        ("Qwen/Qwen3-8B", "hermes"),
        ("NousResearch/Hermes-4-70B", "hermes"),
        ("meta-llama/Llama-3.3-70B-Instruct", "llama3_json"),
        ("meta-llama/Llama-3.2-3B-Instruct", "llama3_pythonic"),
        ("meta-llama/Llama-4-Scout-17B-16E", "llama3_pythonic"),
        ("mistralai/Mistral-Small-3.2-24B", "mistral"),
        ("deepseek-ai/DeepSeek-R1-0528", "deepseek_v3"),
        ("deepseek-ai/DeepSeek-V3.1", "deepseek_v31"),
        ("deepseek-ai/DeepSeek-V3.2-Exp", "deepseek_v32"),
        ("zai-org/GLM-4.6", "glm45"),
        ("moonshotai/Kimi-K2-Thinking", "kimi_k2"),
        ("openai/gpt-oss-120b", "harmony"),
        ("ibm-granite/granite-3.3-8b-instruct", "granite"),
        ("ibm-granite/granite-4.0-h-small", "hermes"),
        ("Salesforce/Llama-xLAM-2-8b-fc-r", "xlam"),
        ("MiniMaxAI/MiniMax-M2", "minimax"),
        ("meetkai/functionary-small-v3.2", "functionary"),
    ],
)
def test_a_model_is_known_by_its_name(model, name):
    assert detect(model) == name


def test_the_text_tells_most_formats():
    for name, text, calls, *_ in CASES:
        if calls and name in ("qwen3_coder", "glm45", "kimi_k2", "harmony", "deepseek_v32"):
            assert parse(text, "auto", TOOLS).tool_calls
    assert parse("just a text", "auto").content == "just a text"


def test_what_cannot_be_told_is_an_error():
    with pytest.raises(ConfigError, match="cannot tell which format the model 'gpt-9' writes"):
        detect("gpt-9")
    with pytest.raises(ConfigError, match=r"there is no format 'hermess'; did you mean 'hermes'\?"):
        parse("x", "hermess")
    parser = IncrementalParser("hermes")
    parser.close()
    with pytest.raises(ValueError, match="closed"):
        parser.feed("x")


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize(
    "unit",
    [
        "<tool_call>",
        "{",
        "[",
        "```\n",
        "`a",
        "<think>",
        "</think>",
        '{"name"',
        "<|eot_id|> ",
        ">>>f\n",
        "\n",
        "｜",
    ],
)
def test_what_is_repeated_without_end_is_read_in_a_bounded_number_of_looks(name, unit):
    """Linear: four times the text takes about four times the looks, whatever they cost."""
    counts = []
    for size in (2_000, 8_000):
        looks = 0

        class Counting(str):
            def find(self, *arguments):
                nonlocal looks
                looks += 1
                return str.find(self, *arguments)

        parse(Counting(unit * size), name)
        counts.append(looks)
    assert counts[1] <= 5 * counts[0] + 100


@pytest.mark.parametrize("name", FORMATS)
def test_a_hundred_thousand_deep_is_an_error_or_text(name):
    for body in ("[" * 100_000, '{"a":' * 100_000):
        for text in (
            body,
            f'<tool_call>{{"name": "f", "arguments": {{"a": {body}',
            f"[TOOL_CALLS]f[ARGS]{body}",
        ):
            assert parse(text, name).tool_calls == ()
