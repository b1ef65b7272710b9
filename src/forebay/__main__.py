"""`python -m forebay` is the command line."""

from forebay.cli.main import run

if __name__ == "__main__":
    run()
