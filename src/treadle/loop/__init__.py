"""The one loop: a driver that asks `decide`, performs, and appends."""
