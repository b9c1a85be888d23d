"""`pliant collect`: run many plans on many networks, and make a data set of them."""

__all__: list[str] = []
