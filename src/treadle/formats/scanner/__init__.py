"""The scanner that all text formats share, and the parts that most formats use."""
