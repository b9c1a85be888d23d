"""Questions of a rank to an owner: its gradients, in float32 or coded with error feedback."""

from collections.abc import Sequence

import torch
from torch import Tensor

from pliant.accelerator import finish_copies, is_accelerator
from pliant.codecs import Codec, all_finite, encode_feedback
from pliant.engine.messages import Message
from pliant.engine.owned_ranges import OwnedRanges, pack, unpack
from pliant.engine.weight_parts import first_bad

__all__ = ["Question"]


class Question:
    """Gradients of what one owner holds, on their way there.

    With a codec they are coded where they are, and only the payload comes to host memory.

    Args:
        owned: What the owner holds of each parameter, in an order that all ranks know.
        codec: Codec of the gradients; None for float32.

    """

    def __init__(self, owned: Sequence[OwnedRanges], codec: Codec | None) -> None:
        self._codec, self._device = codec, owned[0].parameter.device
        numel = sum(own.numel for own in owned)
        self.message = Message(4 * numel if codec is None else codec.nbytes(numel), self._device)
        if codec is not None:
            self._gradient, self._residual = torch.empty(2, numel, dtype=torch.float32, device=self._device)
            self._payload = self.message.payload
            if is_accelerator(self._device):
                self._payload = torch.empty(codec.nbytes(numel), dtype=torch.uint8, device=self._device)

    def fill(self, gradients: list[Tensor], residuals: list[Tensor], seed: int) -> bool:
        """Fill the message from gradients, and update residuals; return whether all gradients are finite.

        Where one is not, residuals stay as they were.
        """
        if self._codec is None:
            pack(self.message.body, gradients)
            return all_finite(self.message.body)
        pack(self._gradient, gradients)
        if first_bad(self._gradient) >= 0:
            return False
        pack(self._residual, residuals)
        encode_feedback(self._codec, self._gradient, self._residual, self._payload, seed)
        unpack(self._residual, residuals)
        if self._payload is not self.message.payload:
            self.message.payload.copy_(self._payload, non_blocking=True)
            finish_copies(self._device)
        return True
