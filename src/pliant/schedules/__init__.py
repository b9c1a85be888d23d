"""In which order sends go: collectives as conditions, schedules by rule and by program, proof, cost, execution."""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
