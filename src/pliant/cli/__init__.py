"""Commands."""

__all__: list[str] = []
