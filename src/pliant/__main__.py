"""Command line of Pliant as a module: ``torchrun --nproc-per-node 2 -m pliant run -- python train.py``."""

from pliant.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    main()
