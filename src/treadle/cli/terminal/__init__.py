"""What several commands need to show runs, ask questions and write files."""
