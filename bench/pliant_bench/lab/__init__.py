"""Laboratory of quality: short trainings whose workers are threads of one process."""

__all__: list[str] = []
