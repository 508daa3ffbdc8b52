"""HTML pages that contain everything that they show: reports of datasets and of rollouts."""
