"""Data that comparisons train on: images and text, from folders or published packages."""

__all__: list[str] = []
