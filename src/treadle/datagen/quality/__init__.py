"""Quality: filters over finished samples, and the search for duplicates."""
