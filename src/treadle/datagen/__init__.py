"""The generation of training data: topics, scenarios, conversations, quality checks and datasets."""
