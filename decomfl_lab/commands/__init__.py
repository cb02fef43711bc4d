"""Sub-commands of ``decomfl`` that the core contributes: parse, call, print."""
