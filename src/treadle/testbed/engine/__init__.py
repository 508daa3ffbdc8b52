"""Mocks of the engines vLLM and SGLang, which answer with the ids and the logprobs of what they sampled.

They have the endpoints of the real servers and the built-in models behind them, on a small tokenizer of their own.
"""

from treadle.testbed.engine.app import EngineApp, EngineKind, EngineSettings
from treadle.testbed.engine.policy import Drawn, Policy, export_tokenizer, logprobs_of
from treadle.testbed.engine.sglang import SglangApp
from treadle.testbed.engine.template import Template, Variant
from treadle.testbed.engine.vllm import VllmApp
from treadle.testbed.engine.vocabulary import tokenizer
from treadle.testbed.engine.work import Answer

__all__ = [
    "ENGINES",
    "Answer",
    "Drawn",
    "EngineApp",
    "EngineKind",
    "EngineSettings",
    "Policy",
    "SglangApp",
    "Template",
    "Variant",
    "VllmApp",
    "export_tokenizer",
    "logprobs_of",
    "tokenizer",
]

ENGINES: dict[EngineKind, type[EngineApp]] = {EngineKind.VLLM: VllmApp, EngineKind.SGLANG: SglangApp}
"""The application of each engine."""
