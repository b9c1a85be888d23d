"""Pliant in the training loops of frameworks: a module for each, which loads with that framework only."""

__all__: list[str] = []
