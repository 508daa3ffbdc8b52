"""What pages show of rollouts: the facts of all, and the messages and tokens of some."""

import msgspec
from tests.rollout.groups import make_groups

from treadle.core.types import Role
from treadle.rollout.rollouts_view import find_facts, make_rollouts_view


def test_the_facts_are_those_of_the_rollouts() -> None:
    groups = make_groups(12)
    view = make_rollouts_view(groups, name="r", dropped={"late": 2})
    assert (view.title, view.dropped) == ("r: rollouts", {"late": 2})
    for group, facts in zip(groups, view.groups, strict=True):
        assert facts == find_facts(group)
        assert [item.reward for item in facts.rollouts] == list(group.rewards_G)
        for rollout, shown in zip(group.rollouts, facts.rollouts, strict=True):
            results = [item for item in rollout.messages if item.role is Role.TOOL]
            assert shown.calls == {"read_file": (len(results), sum(bool(item.is_error) for item in results))}
            assert [item.sampled_tokens for item in shown.branches] == [
                item.sampled_tokens for item in rollout.trajectories
            ]
            assert all(item.versions == {"1": item.sampled_tokens} for item in shown.branches)
            assert [item.drift for item in shown.branches] == [item.drift for item in rollout.trajectories]
    assert not view.groups[1].has_variance
    assert view.groups[2].rollouts[0].reward is None


def test_the_first_and_the_newest_group_have_their_tokens() -> None:
    view = make_rollouts_view(make_groups(40), name="r", decode=lambda ids: f"t{ids[0]} ")
    assert isinstance(view.bodies, dict)
    assert len(view.bodies) == 192
    assert {("g00001", "g00001-0"), ("g00040", "g00040-7")} <= view.bodies.keys()
    assert sum(len(group.rollouts) for group in view.groups) == 320
    body = msgspec.json.decode(view.bodies["g00001", "g00001-0"])
    assert body["messages"][1]["calls"][0]["result"] == "1\n2"
    branch = body["branches"][0]
    assert branch["tokens"] == len(branch["texts"])
    assert branch["texts"][0].startswith("t")


def test_a_view_of_no_groups_is_empty() -> None:
    view = make_rollouts_view([], name="none")
    assert (view.groups, view.bodies) == ([], {})
