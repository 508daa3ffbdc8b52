"""The tokens of a branch as pages get them: arrays that are aligned with the ids."""

from array import array

from tests.rollout.groups import make_groups

from treadle.trajectory.tokens.masks import make_mask
from treadle.trajectory.tokens.token_map import make_token_maps


def test_arrays_of_tokens_are_those_of_the_trajectory() -> None:
    rollout = make_groups(3)[2].rollouts[1]
    maps = make_token_maps(rollout.trajectories, advantage=0.5)
    for branch, found in zip(rollout.trajectories, maps, strict=True):
        assert array("i", found.ids) == branch.token_ids_T
        assert found.logprobs == branch.logprobs_T.tobytes()
        assert (found.sampled, found.weights, found.texts) == (branch.sampled_T, b"", None)
        assert found.answers == branch.spans
        assert found.trained_tokens == found.sampled_tokens == branch.sampled_tokens
        assert found.advantage == 0.5
    half = make_token_maps(
        rollout.trajectories, mask=lambda branch: [0.5 * value for value in branch.sampled_T]
    )[0]
    weights = array("f", half.weights)
    assert set(weights) == {0.0, 0.5}
    assert sum(map(bool, weights)) == half.trained_tokens
    # A mask that needs the text of tokens says that there is none, and the tokens are shown all the same.
    blind = make_token_maps(rollout.trajectories, mask=make_mask("no_reasoning"))[0]
    assert blind.mask_error
    assert blind.trained_tokens == blind.sampled_tokens
