"""`python -m easyscale`: the command, where it is not on the path."""

from easyscale.cli.main import main

if __name__ == "__main__":
    main()
