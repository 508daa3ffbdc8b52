"""The teacher's writers of topics, scenarios, users' turns and judgements. Each depends only on its facts."""
