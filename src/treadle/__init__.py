"""Treadle runs tool-using LLM agents; every run is a durable, replayable, training-ready trajectory."""
