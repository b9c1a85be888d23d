"""Relaxations: each a short file, with combinators for when, where and for which parameters."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
