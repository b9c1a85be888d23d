"""Recommendation embeddings: which rows are on which rank, and what travels for them."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
