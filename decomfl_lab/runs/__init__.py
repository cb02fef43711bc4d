"""A run from its settings to its table: built, advanced, evaluated, saved, resumed."""
