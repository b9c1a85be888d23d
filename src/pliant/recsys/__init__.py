"""Recommendation embeddings: which rows are on which rank, and what travels for them."""

__all__: list[str] = []
