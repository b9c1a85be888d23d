"""Emulated clusters on one machine, and what a cluster's links and machines can do, emulated or not."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
