"""`pliant doctor`: a look at machines and links, and which relaxations would help there."""

__all__ = []
