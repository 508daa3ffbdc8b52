"""The loop: a driver that asks `decide` for an action, has it performed, and appends the events."""
