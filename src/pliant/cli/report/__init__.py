"""Steps of a run, measured and predicted, as one page."""

__all__: list[str] = []
