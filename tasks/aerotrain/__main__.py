"""``python -m aerotrain``: the command line of ``aerotrain.cli``."""

from aerotrain.cli import main

if __name__ == "__main__":
    main()
