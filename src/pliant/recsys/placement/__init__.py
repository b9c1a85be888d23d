"""Predicted traffic, memory and time of a layout of tables, and the search for the best layout. No torch here."""

__all__: list[str] = []
