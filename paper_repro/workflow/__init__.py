"""How parts are computed, recorded, drawn and judged."""
