"""`pliant bench`: algorithms side by side on real or emulated hosts."""

__all__: list[str] = []
