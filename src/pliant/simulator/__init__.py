"""Plans, simulated: how long a step takes, what it waits for and what it sends, without torch and without a network."""

from pliant.simulator.costs import IDEAL, KEYS, Costs
from pliant.simulator.simulate import BUCKET_BYTES, Simulated, simulate, simulate_many, terms

__all__ = ["BUCKET_BYTES", "IDEAL", "KEYS", "Costs", "Simulated", "simulate", "simulate_many", "terms"]
