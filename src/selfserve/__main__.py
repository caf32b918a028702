"""`python -m selfserve` is the same as `self`."""

from selfserve.cli.main import run

if __name__ == "__main__":
    run()
