"""The measurement laboratory of Pliant: comparisons, rival algorithms, losses of ranks, data sets. No torch here."""

__all__ = ["COMMANDS"]

COMMANDS = {
    "bench": ("pliant_bench.harness.command:bench", "Train with many algorithms side by side, and compare."),
    "collect": ("pliant_bench.collect.command:collect", "Run many plans on many networks, and make a data set."),
    "dataset": ("pliant_bench.dataset.command:dataset", "Judge the simulator on a data set, and add what it predicts."),
}
"""Subcommand of `pliant` -> (where it is, what it does); reached by an entry point of this distribution."""
