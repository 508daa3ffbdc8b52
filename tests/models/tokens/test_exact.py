"""Agents at mock engines: what the engine sampled is in the journal once, with the engine's logprobs."""

from collections import Counter

import pytest
from msgspec.structs import replace

from treadle import Agent, model
from treadle.core.events import InferenceCompleted
from treadle.core.tokens.packed import ID_BYTES, pack_ids, pack_logprobs
from treadle.journal.memory import MemoryJournal
from treadle.runs.task import load_task
from treadle.testbed.engines import ENGINES, EngineApp, EngineKind, EngineSettings, export_tokenizer
from treadle.testbed.server import serve

VARIANTS = ("oracle", "oracle+strip_thinking", "oracle+prefill_thinking", "oracle+sort_arguments")
TROUBLE = EngineSettings(seed=1, abort_rate=0.4, cut_rate=0.1, mistake_rate=0.2)
TASKS = ("files:csv_sum-0001", "files:csv_sum-0002", "files:csv_sum-0003")


async def solve(kind, variant, renderer, folder, settings, *, is_streamed=False):
    """Return the engine, and the prompt, the ids, the logprobs and the versions of each inference of each run."""
    export_tokenizer(variant, folder)
    names = {"chatml": f"chatml:{folder}", "hf": f"hf:{folder}?format=hermes"}
    name = names[renderer]
    if renderer == "chatml" and "prefill" in variant:
        name += "?thinking=open"
    # SGLang's own endpoint is sent no name of a model.
    app: EngineApp = ENGINES[kind](replace(settings, model=variant))
    server = await serve(app=app)
    runs = []
    try:
        made = model(f"{kind}:{variant}", base_url=server.url, renderer=name, max_output_tokens=3000)
        for task in TASKS:
            agent = Agent(made, journal=MemoryJournal())
            run = await agent.run(load_task(task), on_event=(lambda _: None) if is_streamed else None)
            bodies = [event.body for event in run.events if isinstance(event.body, InferenceCompleted)]
            runs.append((run, [body.completion for body in bodies]))
    finally:
        await server.close()
    return app, runs


def prompts_of(completions):
    """Return the prompts of the inferences of a run, which are stored without the ids of the one before."""
    before, prompts = b"", []
    for item in completions:
        prompt = before[: item.tokens.prompt_shared_tokens * ID_BYTES] + item.tokens.prompt_token_ids
        prompts.append(prompt)
        before = prompt + item.tokens.token_ids
    return prompts


def check_exact(app, runs):
    """Check that each prompt continues the one before, and that all that was sampled was delivered, once."""
    delivered = Counter()
    for _, completions in runs:
        prompts = prompts_of(completions)
        for number, item in enumerate(completions):
            if number:
                assert prompts[number].startswith(
                    prompts[number - 1] + completions[number - 1].tokens.token_ids
                )
            delivered[item.tokens.token_ids, item.tokens.logprobs] += 1
    pieces = {}
    for answer in app.sampled:
        # An aborted answer goes on where the next prompt is the one before with the ids of its piece.
        ids, logprobs = pieces.pop((*answer.prompt_ids,), ((), ()))
        whole = (*ids, *answer.token_ids), (*logprobs, *answer.logprobs)
        pieces[*answer.prompt_ids, *answer.token_ids] = whole
    sampled = Counter([(pack_ids(ids), pack_logprobs(logprobs)) for ids, logprobs in pieces.values()])
    assert sampled == delivered


@pytest.mark.parametrize("renderer", ["chatml", "hf"])
@pytest.mark.parametrize("variant", VARIANTS)
async def test_every_sampled_token_is_delivered_once(variant, renderer, tmp_path):
    """Whatever the engine's own template does, with merges that make many tokenisations of a text."""
    app, runs = await solve(EngineKind.VLLM, variant, renderer, tmp_path, EngineSettings(seed=1))
    assert all(run.stop_reason == "completed" for run, _ in runs)
    check_exact(app, runs)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", EngineKind)
async def test_also_if_answers_are_aborted_and_cut_off(kind, is_streamed, tmp_path):
    app, runs = await solve(kind, "oracle", "hf", tmp_path, TROUBLE, is_streamed=is_streamed)
    assert len(app.sampled) > sum(len(completions) for _, completions in runs)
    check_exact(app, runs)
