"""`pliant bench`: arms side by side, their workers, and what is asked of them."""

__all__: list[str] = []
