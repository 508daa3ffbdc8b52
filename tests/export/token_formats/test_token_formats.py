"""Token formats: each convention's sentinels, what is refused, and that no sampled token is lost or invented."""

import math
import statistics
from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from msgspec.structs import replace
from tests.conftest import IS_FULL
from tests.export.token_formats.groups import NAN, groups, make_group, make_trajectory

from treadle import ExportError
from treadle.export.exporter import ColumnType
from treadle.export.groups import Group
from treadle.export.row_files import open_group_writer, read_group_file
from treadle.export.token_exporter import TOKEN_FORMATS, encode_group, sampled_mask
from treadle.export.token_formats.prime_rl import encode_samples
from treadle.export.token_formats.token_groups import FORMAT as NATIVE
from treadle.export.token_formats.token_groups import read_groups
from treadle.scoring.advantages import group_relative
from treadle.trajectory.tokens.trajectories import TokenGrade, Trajectory

EXACT = [name for name in TOKEN_FORMATS.names() if TOKEN_FORMATS.load(name).needs is TokenGrade.TOKEN_EXACT]


def write(group: Group, name: str, mask: Any = sampled_mask) -> list[dict[str, Any]]:
    """Return the rows as a reader of the file gets them."""
    lines = encode_group(group, TOKEN_FORMATS.load(name), mask).splitlines()
    return [msgspec.json.decode(line) for line in lines]


def trained_in(rows: list[dict[str, Any]], name: str) -> list[tuple[int, float | None]]:
    """Return the ids that the rows train on, each with its log probability, by the rules of the convention."""
    found: list[tuple[int, float | None]] = []
    for row in rows:
        if name == "tokens":
            cells = zip(row["token_ids"], row["loss"], row["logprobs"], strict=True)
            found += [(token, value) for token, weight, value in cells if weight]
        elif name == "atropos":
            for ids, masks, values in zip(
                row["tokens"], row["masks"], row["inference_logprobs"], strict=True
            ):
                cells = zip(ids, masks, values, strict=True)
                found += [(token, value) for token, label, value in cells if label != -100]
                assert all(value == 1.0 for label, value in zip(masks, values, strict=True) if label == -100)
                assert all(label in (-100, token) for token, label in zip(ids, masks, strict=True))
        elif name == "trl_sft":
            cells = zip(row["input_ids"], row["labels"], strict=True)
            found += [(token, None) for token, label in cells if label != -100]
        elif name == "trl_grpo":
            found += pick(row["completion_ids"], row["env_mask"], row["logprobs"])
        elif name == "verl":
            found += pick(row["response_ids"], row["response_mask"], row["response_logprobs"])
        elif name == "skyrl":
            parts = (row["response_ids"], row["loss_masks"], row["rollout_logprobs"])
            found += [cell for part in zip(*parts, strict=True) for cell in pick(*part)]
        elif name == "prime_rl":
            found += pick(row["token_ids"], row["mask"], row["logprobs"])
        else:
            assert name == "verifiers"
            for node in row["nodes"]:
                ids = [token for token, flag in zip(node["token_ids"], node["mask"], strict=True) if flag]
                found += zip(ids, node["logprobs"], strict=True)
    return found


def pick(ids: list[int], flags: list[int], logprobs: list[float]) -> list[tuple[int, float | None]]:
    assert all(value == 0.0 for flag, value in zip(flags, logprobs, strict=True) if not flag)
    return [(token, value) for token, flag, value in zip(ids, flags, logprobs, strict=True) if flag]


def sampled_in(group: Group, *, with_logprobs: bool = True) -> list[tuple[int, float | None]]:
    found: list[tuple[int, float | None]] = []
    for rollout in group.rollouts:
        for item in rollout.trajectories:
            cells = zip(item.token_ids_T, item.sampled_T, item.logprobs_T, strict=True)
            found += [(token, value if with_logprobs else None) for token, flag, value in cells if flag]
    return found


@pytest.mark.parametrize("name", TOKEN_FORMATS.names())
@settings(max_examples=30)
@given(group=groups())
def test_each_sampled_token_is_trained_on_once_with_its_logprob(name: str, group: Group) -> None:
    rollouts = tuple([replace(item, reward=1.0, advantage=0.5) for item in group.rollouts])
    rows = write(replace(group, rollouts=rollouts), name)
    expected = sampled_in(group, with_logprobs=name != "trl_sft")
    assert sorted(trained_in(rows, name), key=repr) == sorted(expected, key=repr)


@settings(max_examples=100 if IS_FULL else 30)
@given(group=groups())
def test_native_rows_give_the_group_again(group: Group) -> None:
    rows = write(group, "tokens")
    (read,) = read_groups(rows)
    assert msgspec.json.encode(NATIVE.write(read, sampled_mask)) == msgspec.json.encode(rows)
    for before, after in zip(group.rollouts, read.rollouts, strict=True):
        pairs = zip(before.trajectories, after.trajectories, strict=True)
        # NaN is not equal to itself, so the arrays are compared as bytes.
        assert all(a.logprobs_T.tobytes() == b.logprobs_T.tobytes() for a, b in pairs)
        plain = [
            replace(item, trajectories=tuple([replace(t, logprobs_T=array("f")) for t in item.trajectories]))
            for item in (before, after)
        ]
        assert plain[0] == plain[1]
    assert replace(read, rollouts=()) == replace(group, rollouts=())


def test_a_group_with_a_missing_row_is_not_read() -> None:
    rows = write(make_group(), "tokens")
    with pytest.raises(ExportError, match="3 of its 4 rollouts"):
        NATIVE.read(rows[:-1])
    with pytest.raises(ExportError, match="not the rows of one"):
        NATIVE.read(rows[1:])


def with_logprob(group: Group, value: float) -> Group:
    """Return the group with another log probability at the first sampled token of its last rollout."""
    rollout = group.rollouts[-1]
    trajectory = rollout.trajectories[0]
    logprobs = array("f", trajectory.logprobs_T)
    logprobs[trajectory.sampled_T.index(1)] = value
    changed = replace(rollout, trajectories=(replace(trajectory, logprobs_T=logprobs),))
    return replace(group, rollouts=(*group.rollouts[:-1], changed))


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("value", [NAN, math.inf, -math.inf, 1.0])
def test_a_trained_token_without_a_real_logprob_is_refused(name: str, value: float) -> None:
    """The reference pads a short list of log probabilities with 1.0 and writes 0.0 if it has none, in positions
    that are trained on. Here no export contains a value that the engine did not return."""
    with pytest.raises(ExportError, match="token 4 is to be trained on and has no real log probability"):
        write(with_logprob(make_group(), value), name)


def test_a_token_that_is_not_trained_needs_no_logprob() -> None:
    group = with_logprob(make_group(), NAN)

    def skip_first_answer(trajectory: Trajectory) -> Sequence[float]:
        begin = trajectory.spans[0].end
        return [float(flag and place >= begin) for place, flag in enumerate(trajectory.sampled_T)]

    for name in EXACT:
        assert len(trained_in(write(group, name, skip_first_answer), name)) == 4 * 2
    assert len(trained_in(write(group, "trl_sft"), "trl_sft")) == 4 * 5


@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("grade", [TokenGrade.TOKEN_IDS, TokenGrade.TEXT])
def test_a_lower_grade_is_refused(name: str, grade: TokenGrade) -> None:
    """The reference tokenises the text again when the engine returned no tokens, and trains on all of it. Here a
    rollout without the engine's ids is refused."""
    group = make_group()
    trajectory = replace(group.rollouts[0].trajectories[0], grade=grade)
    changed = replace(group.rollouts[0], trajectories=(trajectory,))
    with pytest.raises(ExportError, match=f"has the grade '{grade.value}'"):
        write(replace(group, rollouts=(changed, *group.rollouts[1:])), name)


@pytest.mark.parametrize("name", [*EXACT, "trl_sft"])
def test_a_rollout_without_tokens_is_refused(name: str) -> None:
    """The reference delivers an item with `tokens=[]` if the generation failed."""
    group = make_group()
    for trajectories in ((), (make_trajectory("g1-0", []),)):
        empty = replace(group.rollouts[0], trajectories=trajectories)
        with pytest.raises(ExportError, match="no sampled tokens"):
            write(replace(group, rollouts=(empty, *group.rollouts[1:])), name)


@pytest.mark.parametrize("name", ["atropos", "verl", "skyrl", "verifiers"])
def test_a_rollout_without_a_reward_is_refused(name: str) -> None:
    """The reference gives a score of 0 to a rollout that failed because of the infrastructure. Here it has no
    reward, and a format that needs one refuses it."""
    for rewards in ([1.0, None, 0.0, 1.0], [None] * 4):
        with pytest.raises(ExportError, match="has no reward"):
            write(make_group(rewards=rewards), name)


def advantages_of_verl(rows: list[dict[str, Any]]) -> list[float]:
    """Return the advantages that verl computes for GRPO from the rewards of rows.

    Source: verl 0.9.1, `trainer/ppo/core_algos.py`, `compute_grpo_outcome_advantage`.
    """
    scores: dict[str, list[float]] = {}
    for row in rows:
        scores.setdefault(row["uid"], []).append(row["reward_score"])
    found = []
    for row in rows:
        group = scores[row["uid"]]
        mean, deviation = (
            (0.0, 1.0) if len(group) == 1 else (statistics.fmean(group), statistics.stdev(group))
        )
        found.append((row["reward_score"] - mean) / (deviation + 1e-6))
    return found


@pytest.mark.parametrize("has_advantages", [True, False])
def test_a_rollout_counts_once_in_the_mean_of_verl_whatever_branches_it_has(has_advantages: bool) -> None:
    """Each branch was a row of the group, so that rollouts with more branches weighed more."""
    rewards, branches = [1.0, 0.0, 0.25, 0.0], [1, 3, 2, 1]
    group = make_group(branches=branches, rewards=rewards)
    expected = group_relative(rewards)
    known = expected if has_advantages else [None] * 4
    rollouts = [replace(one, advantage=known[index]) for index, one in enumerate(group.rollouts)]
    rows = write(replace(group, rollouts=tuple(rollouts)), "verl")
    assert len({row["uid"] for row in rows}) == 1 + 2 + 1
    assert [row["extra_fields"]["reward"] for row in rows] == [1.0, 0.0, 0.0, 0.0, 0.25, 0.25, 0.0]
    wanted = [value for value, count in zip(expected, branches, strict=True) for _ in range(count)]
    assert advantages_of_verl(rows) == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize("name", TOKEN_FORMATS.names())
def test_a_mask_cannot_train_on_tokens_that_were_not_sampled(name: str) -> None:
    """The reference's successor trains on the text of users and tools if it has no tokens."""
    with pytest.raises(ExportError, match="token 0, which the model did not sample"):
        write(make_group(), name, lambda trajectory: [1.0] * len(trajectory.token_ids_T))


@pytest.mark.parametrize("name", TOKEN_FORMATS.names())
def test_arrays_of_different_lengths_are_refused(name: str) -> None:
    """The reference cuts or pads lists of different lengths silently."""
    group = make_group()
    trajectory = group.rollouts[0].trajectories[0]
    short = replace(trajectory, logprobs_T=trajectory.logprobs_T[:-1])
    changed = replace(group.rollouts[0], trajectories=(short,))
    with pytest.raises(ExportError, match="11 ids, 11 flags, 10 log probabilities and 11 weights"):
        write(replace(group, rollouts=(changed, *group.rollouts[1:])), name)


@pytest.mark.parametrize("name", TOKEN_FORMATS.names())
def test_weights_are_kept_or_refused(name: str) -> None:
    group = make_group(size=1)

    def halve(trajectory: Trajectory) -> Sequence[float]:
        return [0.5 * flag for flag in trajectory.sampled_T]

    if name in ("tokens", "prime_rl"):
        key = "loss" if name == "tokens" else "rl_weights"
        assert write(group, name, halve)[0][key] == halve(group.rollouts[0].trajectories[0])
    elif name == "verifiers":
        nodes = write(group, name, halve)[0]["nodes"]
        assert [node["loss_weights"]["rl"] for node in nodes if "loss_weights" in node] == [
            [0.5] * 3,
            [0.5] * 2,
        ]
    else:
        with pytest.raises(ExportError, match="the weight 0"):
            write(group, name, halve)


class TestPrimeRl:
    def test_each_token_has_the_temperature_of_its_answer_and_the_advantage_of_its_rollout(self) -> None:
        group = make_group(size=2, branches=[1, 2])
        first, _, last = write(group, "prime_rl")
        assert first["temperatures"] == [1.0] * 4 + [0.5] * 3 + [1.0] * 2 + [0.5] * 2
        assert first["advantages"] == [0.0] * 4 + [-0.5] * 3 + [0.0] * 2 + [-0.5] * 2
        assert last["advantages"][4] == 0.5
        assert first["rl_weights"] is None
        assert {row["env_name"] for row in (first, last)} == {"files"}

    def test_the_fields_stand_where_prime_rl_reads_them(self) -> None:
        sample, _ = msgspec.msgpack.decode(encode_samples(make_group(size=2), sampled_mask))
        assert sample[0] == [*range(10, 21)]
        assert sample[1] == [flag == 1 for flag in make_trajectory("r", [(4, 3), (2, 2)]).sampled_T]
        assert sample[4:12] == ["files", *[None] * 7]
        assert (len(sample), sample[12][4]) == (13, -0.5)

    def test_an_unknown_temperature_or_advantage_is_refused(self) -> None:
        group = make_group(size=1)
        (rollout,) = group.rollouts
        bare = replace(rollout, advantage=None)
        with pytest.raises(ExportError, match="has no advantage, and prime-rl computes none"):
            write(replace(group, rollouts=(bare,)), "prime_rl")
        (trajectory,) = rollout.trajectories
        cold = replace(trajectory, spans=(replace(trajectory.spans[0], settings=None), *trajectory.spans[1:]))
        with pytest.raises(ExportError, match="does not say at which temperature"):
            write(replace(group, rollouts=(replace(rollout, trajectories=(cold,)),)), "prime_rl")


class TestAtropos:
    def test_a_group_has_its_logprobs_and_its_mark(self) -> None:
        """The agent of the reference writes log probabilities under the key `logprobs`, which the server drops."""
        (row,) = write(make_group(), "atropos")
        assert row["tokens"][0] == [*range(10, 21)]
        assert row["masks"][0] == [-100] * 4 + [14, 15, 16] + [-100] * 2 + [19, 20]
        assert row["inference_logprobs"][0] == [1.0] * 4 + [-0.125, -0.25, -0.375] + [1.0] * 2 + [
            -0.125,
            -0.25,
        ]
        assert row["scores"] == [0.0, 1.0, 0.0, 1.0]
        assert row["advantages"][1] == [0.0] * 4 + [0.5] * 3 + [0.0] * 2 + [0.5] * 2
        assert row["generation_params"]["temperature"] == 0.5
        assert row["generation_params"]["treadle"]["group_id"] == "g1"
        assert all("content" in message for messages in row["messages"] for message in messages)
        assert "logprobs" not in row

    def test_branches_make_groups_of_the_registered_size_with_the_same_mean(self) -> None:
        rows = write(make_group(branches=[1, 3, 1, 2]), "atropos")
        assert [len(row["tokens"]) for row in rows] == [4, 4, 4]
        assert all(row["scores"] == [0.0, 1.0, 0.0, 1.0] for row in rows)
        assert [len(ids) for ids in rows[1]["tokens"]] == [2, 11, 2, 11]
        assert rows[0]["overrides"] is None
        assert rows[2]["overrides"] == [
            {"set_advantage_to_zero": True},
            {},
            *[{"set_advantage_to_zero": True}] * 2,
        ]
        parts = [row["generation_params"]["treadle"] for row in rows]
        assert [(item["part"], item["parts"]) for item in parts] == [(0, 3), (1, 3), (2, 3)]


def test_skyrl_steps_of_a_rollout_stand_together() -> None:
    (row,) = write(make_group(branches=[1, 3, 1, 2]), "skyrl")
    assert [item["repetition_id"] for item in row["trajectory_ids"]] == [0, 1, 1, 1, 2, 3, 3]
    assert row["is_last_step"] == [True, False, False, True, True, False, True]
    assert {len(row[key]) for key in row if isinstance(row[key], list)} == {7}
    assert row["stop_reasons"] == ["stop"] * 7


def test_a_path_of_a_trace_has_all_tokens_of_its_branch() -> None:
    group = make_group(size=1, branches=[2])
    (row,) = write(group, "verifiers")
    paths: list[list[dict[str, Any]]] = []
    for number, node in enumerate(row["nodes"]):
        if node["parent"] is None:
            paths.append([])
        else:
            assert node["parent"] == number - 1
        paths[-1].append(node)
    for path, trajectory in zip(paths, group.rollouts[0].trajectories, strict=True):
        assert [token for node in path for token in node["token_ids"]] == trajectory.token_ids_T.tolist()
        assert [node["message"]["role"] for node in path] == ["user", "assistant", "tool", "assistant"]
        assert all(node.get("sampled", False) == (node["message"]["role"] == "assistant") for node in path)
        assert all(node["advantages"] == [-0.5] * len(node["logprobs"]) for node in path if node["logprobs"])
    assert [row["nodes"][call["node"]].get("sampled") for call in row["calls"]] == [True] * 4


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_a_file_gives_the_groups_again(suffix: str, tmp_path: Path) -> None:
    out = tmp_path / f"tokens{suffix}"
    made = [with_logprob(make_group(1, branches=[1, 2, 1, 1]), NAN)]
    made.append(make_group(2, size=2, rewards=[None, 0.25]))
    with open_group_writer("tokens", out) as put:
        for group in made:
            put(group)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    assert list(map(plain, read_group_file(out))) == list(map(plain, made))


def plain(group: Group) -> list[dict[str, Any]]:
    return NATIVE.write(group, sampled_mask)


@pytest.mark.xdist_group("training")
@pytest.mark.parametrize("name", TOKEN_FORMATS.names())
def test_datasets_loads_the_rows(name: str, tmp_path: Path) -> None:
    """Rows of a format have one schema, so that `datasets` reads them from Parquet with their types."""
    datasets = pytest.importorskip("datasets")
    out = tmp_path / "rows.parquet"
    with open_group_writer(name, out) as put:
        put(make_group(1, branches=[1, 2, 1, 1]))
        put(make_group(2))
    loaded = datasets.Dataset.from_parquet(str(out), cache_dir=str(tmp_path / "cache"))
    columns = TOKEN_FORMATS.load(name).columns
    assert loaded.column_names == list(columns)
    written = [*write(make_group(1, branches=[1, 2, 1, 1]), name), *write(make_group(2), name)]
    for key, kind in columns.items():
        if kind in (ColumnType.IDS, ColumnType.FLAGS):
            assert [list(value) for value in loaded[key]] == [row[key] for row in written]


@pytest.mark.xdist_group("training")
class TestTrl:
    def test_the_collator_computes_a_loss_only_for_sampled_tokens(self, tmp_path: Path) -> None:
        datasets = pytest.importorskip("datasets")
        collators = pytest.importorskip("trl.trainer.sft_trainer")
        out = tmp_path / "sft.parquet"
        with open_group_writer("trl_sft", out) as put:
            put(make_group(branches=[1, 2, 1, 1]))
        loaded = datasets.Dataset.from_parquet(str(out), cache_dir=str(tmp_path / "cache"))
        batch = collators.DataCollatorForLanguageModeling(pad_token_id=0)(list(loaded))
        labels = batch["labels"].tolist()
        assert labels[0] == [-100] * 4 + [14, 15, 16] + [-100] * 2 + [19, 20]
        kept = sorted(token for row in labels for token in row if token != -100)
        assert kept == sorted(token for token, _ in sampled_in(make_group(branches=[1, 2, 1, 1])))
