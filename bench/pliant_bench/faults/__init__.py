"""`pliant bench --kill`: ranks are lost at random moments, and what becomes of the others."""

__all__: list[str] = []
