"""The renderers that the tests try: at least one of every registered kind."""

import json
import re
from functools import cache
from pathlib import Path
from tempfile import mkdtemp

from tests.renderers.folders import CHATML, TEMPLATES, make_folder, make_tokenizer

from treadle.core.errors import ConfigError
from treadle.renderers.protocol import Renderer
from treadle.renderers.registry import load_renderer

FAMILIES = (
    "qwen3",
    "qwen3.5",
    "qwen3-vl",
    "llama-3",
    "glm-5",
    "kimi-k2",
    "minimax-m2",
    "nemotron-3",
    "deepseek-v3",
    "deepseek-r1",
    "hy3",
    "inkling",
    "laguna-xs-2.1",
)
"""Families whose tokenizers need no download."""
NAMES = (
    "chatml",
    "chatml?thinking=open",
    "chatml?thinking=closed",
    "chatml:PATH",
    *[f"hf:{name}" for name in TEMPLATES],
    *[f"family:{name}" for name in FAMILIES],
)


@cache
def make(name: str) -> Renderer:
    """Return the renderer of `NAMES` called `name`, with a tokenizer made on the spot."""
    kind, _, rest = name.partition(":")
    if kind == "hf":
        folder = make_folder(Path(mkdtemp()) / rest, rest)
        return load_renderer(f"hf:{folder}?format={TEMPLATES[rest][3]}")
    if kind == "family":
        return make_family(rest)
    if rest:
        path = Path(mkdtemp()) / "tokenizer.json"
        make_tokenizer(CHATML).save(str(path))
        return load_renderer(f"chatml:{path}")
    return load_renderer(name)


def make_family(family: str) -> Renderer:
    """Return the renderer of a family over a tokenizer with the special tokens that the family asks for."""
    special: list[str] = []
    while True:
        path = Path(mkdtemp()) / "tokenizer.json"
        make_tokenizer(tuple(special)).save(str(path))
        try:
            return load_renderer(f"family:{family}@{path.parent}")
        except ConfigError as error:
            missing = re.search(r"[Tt]oken '([^']+)'", str(error)) or re.search(r"for '([^']+)'", str(error))
            if missing is None or missing[1] in special:
                raise
            special.append(missing[1])


def write_config(folder: Path, **values: object) -> None:
    """Change keys of a folder's `tokenizer_config.json`."""
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))
