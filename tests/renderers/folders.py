"""Folders of tokenizers with chat templates, made on the spot: small, with the troubles of real ones."""

import json
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

TEXTS = [
    "I think that the weather in Oslo is rain rain",
    '{"name": "weather", "arguments": {"city": "Oslo"}}',
]
_MANUAL = """{%- if tools -%}
{{- '<|im_start|>system\n' -}}
{%- if messages[0].role == 'system' -%}{{- messages[0].content + '\n\n' -}}{%- endif -%}
{{- '# Tools\n<tools>' -}}
{%- for tool in tools -%}{{- '\n' + (tool | tojson) -}}{%- endfor -%}
{{- '\n</tools>\nAnswer with <tool_call> and JSON.<|im_end|>\n' -}}
{%- elif messages[0].role == 'system' -%}
{{- '<|im_start|>system\n' + messages[0].content + '<|im_end|>\n' -}}
{%- endif -%}
"""
QWEN = (
    _MANUAL
    + """{%- set ns = namespace(last=-1) -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{%- set ns.last = loop.index0 -%}{%- endif -%}
{%- endfor -%}
{%- for message in messages -%}
{%- if message.role == 'user' or (message.role == 'system' and not loop.first) -%}
{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' -}}
{%- elif message.role == 'assistant' -%}
{%- set thought = message.reasoning_content or '' -%}
{{- '<|im_start|>assistant\n' -}}
{%- if loop.index0 > ns.last and (loop.last or thought) -%}
{{- '<think>\n' + thought.strip('\n') + '\n</think>\n\n' + message.content.lstrip('\n') -}}
{%- else -%}
{{- message.content -}}
{%- endif -%}
{%- generation -%}{%- for call in message.tool_calls or [] -%}
{%- if message.content or not loop.first -%}{{- '\n' -}}{%- endif -%}
{{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- (call.function.arguments if call.function.arguments is string else call.function.arguments | tojson) -}}
{{- '}\n</tool_call>' -}}
{%- endfor -%}{%- endgeneration -%}
{{- '<|im_end|>\n' -}}
{%- elif message.role == 'tool' -%}
{%- if messages[loop.index0 - 1].role != 'tool' -%}{{- '<|im_start|>user' -}}{%- endif -%}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' -}}
{%- if loop.last or messages[loop.index0 + 1].role != 'tool' -%}{{- '<|im_end|>\n' -}}{%- endif -%}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\n' -}}
{%- if enable_thinking is defined and enable_thinking is false -%}{{- '<think>\n\n</think>\n\n' -}}{%- endif -%}
{%- endif -%}"""
)
"""A template as Qwen 3's: it leaves out the thinking of earlier turns and merges the results of a step."""
PREFILLED = QWEN.replace(
    "{%- if enable_thinking is defined and enable_thinking is false -%}",
    "{{- '<think>\\n' -}}{%- if false -%}",
)
"""A template that begins each answer with the opening tag of thinking, as those of DeepSeek R1 and QwQ do."""
LLAMA = """{{- bos_token -}}
{%- if tools -%}{{- tools | tojson -}}{%- endif -%}
{%- for message in messages -%}
{{- '<|start_header_id|>' + ('ipython' if message.role == 'tool' else message.role) -}}
{{- '<|end_header_id|>\n\n' -}}
{%- if message.tool_calls -%}
{%- if message.tool_calls | length != 1 -%}{{- raise_exception('one call at a time') -}}{%- endif -%}
{%- set call = message.tool_calls[0].function -%}
{{- message.content + '{"name": "' + call.name + '", "parameters": ' + (call.arguments | tojson) + '}' -}}
{%- else -%}
{{- message.content | trim -}}
{%- endif -%}
{{- '<|eot_id|>' -}}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' -}}
{%- endif -%}"""
"""A template as Llama 3's: it trims contents, and allows one call in a step."""
GLM = """{{- '[gMASK]<sop>' -}}
{%- if tools -%}{{- tools | tojson -}}{%- endif -%}
{%- for message in messages -%}
{%- if message.role == 'user' -%}{{- '<|user|>\n' + message.content -}}
{%- elif message.role == 'system' -%}{{- '<|system|>\n' + message.content -}}
{%- elif message.role == 'assistant' -%}
{{- '<|assistant|>\n' + message.content -}}
{%- for call in message.tool_calls or [] -%}
{{- '\n<tool_call>' + call.function.name -}}
{%- for name, value in call.function.arguments.items() -%}
{{- '\n<arg_key>' + name + '</arg_key>\n<arg_value>' + value + '</arg_value>' -}}
{%- endfor -%}
{{- '\n</tool_call>' -}}
{%- endfor -%}
{%- else -%}
{%- if loop.first or messages[loop.index0 - 1].role != 'tool' -%}{{- '<|observation|>' -}}{%- endif -%}
{{- '\n<tool_response>\n' + message.content + '\n</tool_response>' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|assistant|>\n' -}}{%- endif -%}"""
"""A template as GLM's: nothing ends an answer but the mark of the next message."""
PHI = """{%- for message in messages -%}
{{- '<|' + message.role + '|>\n' + message.content + '<|end|>\n' -}}
{%- endfor -%}
{{- '<|assistant|>\n' if add_generation_prompt else eos_token -}}"""
"""A template as Phi 3's: it has no place for tools, and the last message is followed by one more token."""
OTHER_END = """{%- if tools -%}{{- tools | tojson -}}{%- endif -%}
{%- for message in messages -%}
{{- '<|start|>' + message.role + '<|message|>' + message.content -}}
{%- if message.tool_calls -%}{{- message.tool_calls | tojson -}}{%- endif -%}
{{- '<|return|>' if loop.last and message.role == 'assistant' else '<|end|>' -}}
{%- endfor -%}
{{- '<|start|>assistant<|message|>' if add_generation_prompt else '' -}}"""
"""A template that ends the newest answer with another token than earlier ones, as that of gpt-oss does."""

CHATML = ("<|im_start|>", "<|im_end|>", "<|endoftext|>")
TEMPLATES = {
    "qwen": (QWEN, CHATML, "<|im_end|>", "hermes"),
    "prefilled": (PREFILLED, CHATML, "<|im_end|>", "hermes"),
    "llama": (
        LLAMA,
        ("<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
        "<|eot_id|>",
        "llama3_json",
    ),
    "glm": (
        GLM,
        ("[gMASK]", "<sop>", "<|user|>", "<|system|>", "<|assistant|>", "<|observation|>", "<|endoftext|>"),
        ["<|endoftext|>", "<|user|>", "<|observation|>"],
        "glm45",
    ),
    "phi": (
        PHI,
        ("<|endoftext|>", "<|assistant|>", "<|user|>", "<|system|>", "<|end|>", "<|tool|>"),
        "<|endoftext|>",
        "hermes",
    ),
    "other_end": (OTHER_END, ("<|start|>", "<|message|>", "<|return|>", "<|end|>"), "<|return|>", "hermes"),
}


def make_folder(folder: Path, template: str) -> Path:
    """Write a tokenizer with a template, and return its folder."""
    source, special, ends, _ = TEMPLATES[template]
    tokenizer = make_tokenizer(special)
    tokenizer.add_tokens(
        [AddedToken(text, special=False, normalized=False) for text in ("<tool_call>", "</tool_call>")]
    )
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    names = [ends] if isinstance(ends, str) else ends
    begin = {"__type": "AddedToken", "content": special[0], "special": True}
    config = {"eos_token": names[0], "bos_token": begin, "chat_template": source}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    ids = [tokenizer.token_to_id(name) for name in names]
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": ids}))
    return folder


def make_tokenizer(
    special: tuple[str, ...], texts: list[str] | None = None, vocabulary: int = 400
) -> Tokenizer:
    """Return a small byte-level BPE tokenizer."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(texts or TEXTS, trainer)
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in special])
    return tokenizer
