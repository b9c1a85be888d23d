"""Commands of the binary `pliant`."""

__all__: list[str] = []
