"""Models of transformers in this process: exact ids and logprobs, batches, and what cannot work."""

import asyncio
import sys

import pytest
from tests.environments import LateModule

from treadle import Agent, Policy, model
from treadle.core.errors import ConfigError, ContextOverflowError
from treadle.core.tokens.packed import list_ids, unpack_logprobs
from treadle.core.types import FinishReason, Settings
from treadle.journal.memory import MemoryJournal
from treadle.models.protocol import Watch
from treadle.models.tokens.engines.in_process import InProcessEngine, Network
from treadle.testbed.engines import export_tokenizer
from treadle.trajectory.tokens import load_tokens

transformers = LateModule("transformers")
torch = LateModule("torch")
pytestmark = pytest.mark.xdist_group("training")
TOLERANCE = 1e-4


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The folder of a model with random weights, whose answers end by themselves now and then."""
    path = tmp_path_factory.mktemp("models") / "tiny"
    export_tokenizer("oracle", path)
    torch.manual_seed(3)
    torch.set_num_threads(1)
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    from treadle.renderers.registry import load_renderer

    renderer = load_renderer(f"hf:{path}")
    size = max(renderer.stop_token_ids) + 512
    network = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(vocab_size=size, max_position_embeddings=4096, **shape)
    )
    network.lm_head.weight.data[list(renderer.stop_token_ids)] *= 8
    network.save_pretrained(path)
    return path


def engine(folder, batch_size=8):
    network = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype="float32").eval()
    return InProcessEngine("hf:tiny", Network(network, batch_size=batch_size), str), network


def odds(network, ids, at, temperature=1.0):
    """Return the log probabilities of all ids at a position, by one forward pass over everything."""
    with torch.no_grad():
        return (network(torch.tensor([ids])).logits[0, at - 1] / temperature).log_softmax(-1)


async def test_a_forward_pass_over_a_run_gives_the_logprobs_of_its_tokens(folder):
    made = model(f"hf:{folder}", max_output_tokens=24, seed=1)
    agent = Agent(made, tools=["files"], journal=MemoryJournal(), policy=Policy(max_steps=2))
    async with agent.session("talk", files={"a.md": "one"}) as session:
        for text in ("Read a.md.", "Once more, é?", "And now?"):
            await session.send(text)
    _, network = engine(folder)
    sampled = 0
    for row in load_tokens(agent.journal, "talk").trajectories:
        assert row.has_policy_logprobs
        for at in range(1, len(row.token_ids_T)):
            if row.sampled_T[at]:
                again = odds(network, row.token_ids_T, at)[row.token_ids_T[at]]
                assert float(again) == pytest.approx(row.logprobs_T[at], abs=TOLERANCE)
                sampled += 1
    assert sampled > 30


async def test_a_batch_of_prompts_of_any_length_samples_as_each_alone(folder):
    """Padding and the neighbours in a batch change nothing."""
    prompts = [[5, 6, 7], list(range(40, 90)), [9], list(range(10, 30))]
    settings = [
        Settings(seed=seed, max_output_tokens=limit) for seed, limit in ((1, 5), (2, 30), (3, 12), (4, 1))
    ]
    together, _ = engine(folder, batch_size=4)
    alone, _ = engine(folder, batch_size=1)
    ask = list(zip(prompts, settings, strict=True))
    batch = await asyncio.gather(*[together.generate(ids, given, [2], Watch()) for ids, given in ask])
    for (ids, given), found in zip(ask, batch, strict=True):
        one = await alone.generate(ids, given, [2], Watch())
        assert list_ids(found.token_ids) == list_ids(one.token_ids)
        assert list(unpack_logprobs(found.logprobs)) == pytest.approx(
            list(unpack_logprobs(one.logprobs)), abs=TOLERANCE
        )


async def test_greedy_answers_are_those_of_transformers(folder):
    made, network = engine(folder)
    found = await made.generate([5, 6, 7], Settings(temperature=0, max_output_tokens=12), [], Watch())
    theirs = network.generate(
        torch.tensor([[5, 6, 7]]), do_sample=False, max_new_tokens=12, min_new_tokens=12, pad_token_id=0
    )
    assert list_ids(found.token_ids) == theirs[0, 3:].tolist()
    assert list(unpack_logprobs(found.logprobs)) == [0.0] * 12
    assert found.finish is FinishReason.LENGTH


@pytest.mark.parametrize(("extra", "top_p"), [({"top_k": 3}, None), (None, 0.02)])
async def test_logprobs_are_those_of_the_ids_that_could_be_sampled(folder, extra, top_p):
    made, network = engine(folder)
    settings = Settings(temperature=0.7, top_p=top_p, seed=4, max_output_tokens=20, extra=extra)
    found = await made.generate([5, 6, 7], settings, [], Watch())
    ids = [5, 6, 7, *list_ids(found.token_ids)]
    for place, logprob in enumerate(unpack_logprobs(found.logprobs), 3):
        whole = odds(network, ids, place, 0.7)
        ordered, order = whole.sort(descending=True)
        before = ordered.exp().cumsum(-1) - ordered.exp()
        kept = order[:3] if extra else order[before < top_p]
        assert ids[place] in kept
        assert logprob == pytest.approx(float(whole[ids[place]] - whole[kept].logsumexp(-1)), abs=TOLERANCE)


async def test_a_model_with_an_adapter_samples_with_it(folder, tmp_path):
    """From its folder, as an option, and as the object that a trainer of PEFT has."""
    peft = pytest.importorskip("peft")
    _, network = engine(folder)
    plan = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    adapted = peft.get_peft_model(network, plan).eval()
    adapted.save_pretrained(tmp_path)
    trained = InProcessEngine("training:it", Network(adapted), str)
    settings = Settings(seed=1, max_output_tokens=8)
    found = await trained.generate([5, 6, 7], settings, [], Watch())
    ids = [5, 6, 7, *list_ids(found.token_ids)]
    for place, logprob in enumerate(unpack_logprobs(found.logprobs), 3):
        assert logprob == pytest.approx(float(odds(adapted, ids, place)[ids[place]]), abs=TOLERANCE)
    said = [
        (await Agent(model(f"hf:{folder}", seed=1, max_output_tokens=8, **more)).run("hello")).output
        for more in ({"adapter": str(tmp_path)}, {"adapter": str(tmp_path)}, {})
    ]
    assert said[0] == said[1] != said[2]


async def test_the_seed_makes_the_answer(folder):
    made, _ = engine(folder)

    async def sample(seed):
        found = await made.generate([5, 6], Settings(seed=seed, max_output_tokens=20), [], Watch())
        return list_ids(found.token_ids)

    first, second, third = await asyncio.gather(sample(1), sample(1), sample(2))
    assert first == second != third


async def test_a_cancelled_answer_leaves_its_batch(folder):
    made, _ = engine(folder, batch_size=2)
    pieces = asyncio.Queue()
    watch = Watch(on_token_ids=pieces.put_nowait)
    endless = asyncio.create_task(made.generate([5], Settings(max_output_tokens=4000, seed=1), [], watch))
    await pieces.get()
    endless.cancel()
    found = await made.generate([6], Settings(max_output_tokens=3, seed=1), [], Watch())
    assert len(list_ids(found.token_ids)) == 3
    with pytest.raises(asyncio.CancelledError):
        await endless


async def test_a_model_under_training_stays_in_training(folder):
    made, network = engine(folder)
    network.train()
    await made.generate([6], Settings(max_output_tokens=3, seed=1), [], Watch())
    assert network.training
    assert all(parameter.requires_grad for parameter in network.parameters())


async def test_a_prompt_without_room_is_an_overflow(folder):
    made, _ = engine(folder)
    with pytest.raises(ContextOverflowError, match="the prompt has 4,096 tokens, and 'hf:tiny' holds 4,096"):
        await made.generate([1] * 4096, Settings(), [], Watch())


async def test_a_text_ends_an_answer(folder):
    made = model(f"hf:{folder}", max_output_tokens=200, seed=1, temperature=2.0)
    whole = await Agent(made).run("hello")
    text = whole.output[3:6]
    stopped = await Agent(
        model(f"hf:{folder}", max_output_tokens=200, seed=1, temperature=2.0, stop=text)
    ).run("hello")
    assert stopped.output == whole.output[: whole.output.index(text)]


@pytest.mark.parametrize(
    ("name", "options", "text"),
    [
        ("hf:no/such", {}, "there is no folder 'no/such', and the Hub"),
        ("hf:{folder}x", {}, r"there is no folder '.*x'; did you mean '\w+'\?$"),
        ("hf:{folder}", {"devise": "cpu"}, "has no option 'devise'; did you mean 'device'"),
        ("hf:{folder}", {"extra": {"min_p": 0.1}}, "has no option 'min_p'.* top_k"),
        ("hf:{folder}", {"device": "abacus"}, "transformers cannot load the model"),
        ("hf:{folder}", {"device": "xpu"}, "transformers cannot load the model"),
        ("hf:{folder}", {"adapter": "lora"}, "pip install peft"),
    ],
)
def test_what_cannot_work_is_told(folder, name, options, text, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(ConfigError, match=text):
        model(name.format(folder=folder), **options)


def test_a_missing_package_is_told(folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(
        ConfigError, match="needs torch, which is not installed: pip install torch transformers"
    ):
        model(f"hf:{folder}", device="cpu", batch_size=3)


async def test_the_renderer_of_another_model_is_refused(folder):
    """The ids of the prompt meant something else to the network."""
    agent = Agent(model(f"hf:{folder}", renderer="chatml", max_output_tokens=4), journal=MemoryJournal())
    with pytest.raises(
        ConfigError, match=r"the renderer 'chatml' is for another model than hf:\S*tiny: the ids"
    ):
        await agent.run("Say one.")
    given = model(f"hf:{folder}", renderer=f"chatml:{folder}/tokenizer.json", max_output_tokens=4)
    assert (await Agent(given, journal=MemoryJournal()).run("Say one.")).usage.output_tokens
