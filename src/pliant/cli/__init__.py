"""What a person calls."""

__all__: list[str] = []
