"""The command `treadle rollout`, and the commands of its own."""
