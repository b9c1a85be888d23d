"""All published figures beside simulated ones, on the screen or as the page of the docs."""

import argparse
from pathlib import Path

from benchmarks.published.page import page


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--md", type=Path, help="Write the page there.")
    given = parser.parse_args()
    text = page()
    if given.md is None:
        print(text)
    else:
        given.md.write_text(text)


if __name__ == "__main__":
    main()
