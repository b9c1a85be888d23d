"""Frequencies with which rows are looked up: counted in a click log, or stated as a law."""

__all__: list[str] = []
