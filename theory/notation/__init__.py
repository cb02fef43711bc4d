"""The symbols, units, formulas and settings that statements are written in."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules=["printed", "symbols"])
