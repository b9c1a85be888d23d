"""Command line by ``python -m pliant``, and so by ``torchrun ... -m pliant``."""

from pliant.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
