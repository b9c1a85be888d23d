"""Laboratory of quality: short trainings whose workers are threads of one process, or share an accelerator."""

__all__: list[str] = []
