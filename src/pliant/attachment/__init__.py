"""Attachment of Pliant to an unchanged training script: what `pliant run` puts into the processes that it starts."""

from pliant.attachment.verdict import QUALITIES, RunOptions, RunVerdict

__all__ = ["QUALITIES", "RunOptions", "RunVerdict"]
