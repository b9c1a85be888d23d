"""Feel how the loss curves: estimates of the diagonal of its Hessian, while a model trains."""

__all__: list[str] = []
