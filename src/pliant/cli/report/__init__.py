"""What happened in the steps of a run, and what was predicted, as one page."""

__all__: list[str] = []
