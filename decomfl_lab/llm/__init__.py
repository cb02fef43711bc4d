"""Causal language models that are fine-tuned on the paper's six tasks (extra ``llm``)."""
