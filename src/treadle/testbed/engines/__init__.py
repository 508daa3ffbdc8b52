"""Mocks of the engines vLLM and SGLang, which answer with the ids and the logprobs of what they sampled.

They have the endpoints of the real servers (`mock_vllm`, `mock_sglang`) and the built-in models behind them, on a
small tokenizer of their own (`bpe`). `engine_app` is what both have in common. `token_policy` is the distribution
that they sample from, and `mock_template` the chat template. The endpoints of a further engine are one more file,
a line in `ENGINES`, and its cases in `tests/rollout/test_exactness.py`.
"""

from treadle.testbed.engines.answering_work import SampledAnswer as SampledAnswer
from treadle.testbed.engines.bpe import tokenizer as tokenizer
from treadle.testbed.engines.engine_app import EngineApp as EngineApp
from treadle.testbed.engines.engine_app import EngineKind as EngineKind
from treadle.testbed.engines.engine_app import EngineSettings as EngineSettings
from treadle.testbed.engines.mock_sglang import SglangApp as SglangApp
from treadle.testbed.engines.mock_template import Template as Template
from treadle.testbed.engines.mock_template import Variant as Variant
from treadle.testbed.engines.mock_vllm import VllmApp as VllmApp
from treadle.testbed.engines.token_policy import DrawnToken as DrawnToken
from treadle.testbed.engines.token_policy import TokenPolicy as TokenPolicy
from treadle.testbed.engines.token_policy import export_tokenizer as export_tokenizer
from treadle.testbed.engines.token_policy import logprobs_of as logprobs_of

ENGINES: dict[EngineKind, type[EngineApp]] = {EngineKind.VLLM: VllmApp, EngineKind.SGLANG: SglangApp}
"""The application of each engine."""
