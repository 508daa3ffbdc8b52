"""Mocks of the engines vLLM and SGLang, which answer with the ids and the logprobs of what they sampled.

They have the endpoints of the real servers (`mock_vllm`, `mock_sglang`) and the built-in models behind them, on a
small tokenizer of their own (`bpe`). `engine_app` is what both have in common. `token_policy` is the distribution
that they sample from, and `mock_template` the chat template. The endpoints of a further engine are one more file,
a line in `ENGINES`, and its cases in `tests/rollout/test_exactness.py`.
"""

from treadle.testbed.engines.answering_work import SampledAnswer
from treadle.testbed.engines.bpe import tokenizer
from treadle.testbed.engines.engine_app import EngineApp, EngineKind, EngineSettings
from treadle.testbed.engines.mock_sglang import SglangApp
from treadle.testbed.engines.mock_template import Template, Variant
from treadle.testbed.engines.mock_vllm import VllmApp
from treadle.testbed.engines.token_policy import DrawnToken, TokenPolicy, export_tokenizer, logprobs_of

__all__ = [
    "ENGINES",
    "DrawnToken",
    "EngineApp",
    "EngineKind",
    "EngineSettings",
    "SampledAnswer",
    "SglangApp",
    "Template",
    "TokenPolicy",
    "Variant",
    "VllmApp",
    "export_tokenizer",
    "logprobs_of",
    "tokenizer",
]

ENGINES: dict[EngineKind, type[EngineApp]] = {EngineKind.VLLM: VllmApp, EngineKind.SGLANG: SglangApp}
"""The application of each engine."""
