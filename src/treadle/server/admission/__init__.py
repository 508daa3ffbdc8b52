"""What a request may do: keys, budgets, keys of requests that are sent again, and servers that clients name."""
