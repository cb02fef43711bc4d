"""``python -m decomfl_lab`` is ``decomfl``."""

from decomfl_lab.cli.main import main

if __name__ == "__main__":
    main()
