"""Causal language models: tasks as classification of the last position, models of several libraries and sizes."""
