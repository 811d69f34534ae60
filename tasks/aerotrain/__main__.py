"""``python -m aerotrain``: the command line of ``aerotrain.standalone.cli``."""

from aerotrain.standalone.cli import main

if __name__ == "__main__":
    main()
