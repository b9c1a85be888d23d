"""Tests of benchmarks/chaos, which is a package in a folder of its own."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "benchmarks"))
