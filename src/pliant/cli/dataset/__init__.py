"""`pliant dataset`: how good the simulator is on measured runs, and what it adds to them."""

__all__: list[str] = []
