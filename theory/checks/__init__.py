"""Statements against problems whose truth is known: simulation, probing, the worst case."""
