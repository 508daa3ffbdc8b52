"""The experts of a mixture of experts: from the engine's answers to the journal, branches and trainers."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.rollout.engines import ENDPOINTS, connect, engine

from treadle import Agent
from treadle.core.events import InferenceCompleted
from treadle.core.tokens.routed_experts import RoutedExperts, join_experts
from treadle.core.tokens.token_record import SamplingMask
from treadle.export.groups import Rollout, load_rollout, make_group
from treadle.export.token_exporter import sampled_mask
from treadle.export.token_formats.prime_rl import encode_samples
from treadle.journal.memory import MemoryJournal
from treadle.models.wire.expert_fields import read_ints, read_npy
from treadle.runs.run import Run
from treadle.runs.task import load_task

LAYERS, CHOSEN = 3, 2


def expected(ids: list[int]) -> bytes:
    """The experts that the mock engine tells of tokens."""
    return bytes([(number + 7 * place) % 64 for number in ids for place in range(LAYERS * CHOSEN)])


ASKED = {
    "sglang_generate": {"return_routed_experts": True, "return_sampling_mask": True},
    "sglang_chat": {
        **ENDPOINTS["sglang_chat"][1]["extra"],
        "return_routed_experts": True,
        "return_sampling_mask": True,
    },
}
"""What the endpoints of SGLang must be asked for."""


async def play(
    endpoint: str, folder: Path, settings: dict[str, Any], **options: Any
) -> tuple[Rollout, Run[str]]:
    """Run a task at a mock engine's endpoint."""
    journal = MemoryJournal()
    if endpoint in ASKED:
        options["extra"] = ASKED[endpoint]
    async with engine(endpoint, "oracle", **settings) as (_, server):
        agent = Agent(connect(endpoint, "oracle", server.url, folder, **options), journal=journal)
        run = await agent.run(load_task("files:csv_sum-0001"))
    return load_rollout(journal, run.run_id)[0], run


@pytest.mark.parametrize("endpoint", list(ENDPOINTS))
async def test_each_token_of_a_branch_has_its_experts_and_the_journal_has_them_once(
    endpoint: str, tmp_path: Path
) -> None:
    rollout, run = await play(endpoint, tmp_path, {"routed_experts": (LAYERS, CHOSEN)}, temperature=1.0)
    assert sum(len(branch.spans) for branch in rollout.trajectories) > 2
    is_flat = endpoint.startswith("sglang")
    shape = (0, LAYERS * CHOSEN, 2) if is_flat else (LAYERS, CHOSEN, 1)
    for branch in rollout.trajectories:
        found, ids = branch.routed_experts, branch.token_ids_T.tolist()
        assert found is not None
        assert (found.start, found.end) == (0, len(ids) - 1)
        assert (found.layers, found.chosen, found.width) == shape
        assert found.data[:: found.width] == expected(ids[:-1])
    if endpoint.endswith("chat"):
        return  # A prompt that is made again from messages need not continue the last one.
    records = [
        item.body.completion.tokens for item in run.events if isinstance(item.body, InferenceCompleted)
    ]
    kept = [record.routed_experts for record in records if record is not None and record.routed_experts]
    # The last token of an answer is sent through the model with the next prompt.
    assert [item.start for item in kept] == [0, *(item.end for item in kept[:-1])]
    assert sum(len(item.data) for item in kept) == (len(ids) - 1) * found.row_bytes

    rollout = msgspec.structs.replace(rollout, reward=1.0, advantage=0.5)
    group = make_group([rollout], None, group_id="g", number=1, task="files:csv_sum-0001")
    (sample,) = msgspec.msgpack.decode(encode_samples(group, sampled_mask))
    if is_flat:
        assert sample[7] is None
        return
    data, written, kind = sample[7]
    assert (written, kind) == ([len(ids), LAYERS, CHOSEN], "uint8")
    assert data == found.data + found.data[-LAYERS * CHOSEN :]


@pytest.mark.parametrize("endpoint", ["vllm_generate", "sglang_generate", "sglang_chat"])
async def test_each_answer_has_the_tokens_that_it_was_chosen_from(endpoint: str, tmp_path: Path) -> None:
    rollout, _ = await play(endpoint, tmp_path, {"tells_masks": True, "abort_rate": 0.5})
    for branch in rollout.trajectories:
        for span in branch.spans:
            rows = [[number, *range(number % 3)] for number in branch.token_ids_T[span.start : span.end]]
            assert span.sampling_mask == SamplingMask.of(rows)


def test_experts_with_a_gap_or_of_another_form_are_left_out() -> None:
    first = RoutedExperts(0, 1, 2, 1, bytes(range(8)))
    assert join_experts([first, RoutedExperts(4, 1, 2, 1, b"ab")], 6) == RoutedExperts(
        0, 1, 2, 1, bytes(range(8)) + b"ab"
    )
    assert join_experts([first, RoutedExperts(5, 1, 2, 1, b"ab")], 6) is None
    assert join_experts([first, RoutedExperts(4, 2, 1, 1, b"ab")], 6) is None
    assert join_experts([first], 6) is None
    assert join_experts([None], 6) is None


def test_what_numpy_writes_is_read() -> None:
    numpy = pytest.importorskip("numpy")
    import io
    from base64 import b64encode

    rows = numpy.arange(24).reshape(4, 3, 2)
    for kind, width in (("uint8", 1), ("uint16", 2), ("int32", 2)):
        out = io.BytesIO()
        numpy.save(out, rows.astype(kind))
        found = read_npy(b64encode(out.getvalue()).decode())
        assert (found.end, found.layers, found.chosen, found.width) == (4, 3, 2, width)
        assert found.data == rows.astype(f"<u{width}").tobytes()
    with pytest.raises(ValueError, match="file format of numpy"):
        read_npy(b64encode(b"other").decode())


def test_what_sglang_writes_is_read() -> None:
    numpy = pytest.importorskip("numpy")
    from base64 import b64encode

    rows = numpy.arange(24, dtype="int32")
    text = b64encode(rows.tobytes()).decode()
    assert read_ints(text, 4) == RoutedExperts(0, 0, 6, 2, rows.astype("<u2").tobytes())
    assert read_ints(text, 5) is None
    assert read_ints(text, 0) is None
    with pytest.raises(ValueError, match="no number from 0"):
        read_ints(b64encode((rows - 1).tobytes()).decode(), 4)
