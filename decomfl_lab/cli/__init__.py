"""The command line: ``main`` finds the commands, the others parse, call and print."""
