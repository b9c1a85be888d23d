"""Results of comparisons: rows, tables, figures and pages."""

__all__: list[str] = []
