"""Pliant: data-parallel PyTorch training that bends to the network it has."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
