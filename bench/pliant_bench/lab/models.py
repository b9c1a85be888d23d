"""Small models of the laboratory of quality that `pliant bench` does not have."""

from torch import Tensor, nn

__all__ = ["CharLstm", "ClickMlp"]


class CharLstm(nn.Module):
    """About 0.06 M parameters: an embedding, one LSTM layer and a linear layer over characters."""

    def __init__(self, vocabulary: int, embedding: int = 32, width: int = 96) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocabulary, embedding)
        self.recurrent = nn.LSTM(embedding, width, batch_first=True)
        self.head = nn.Linear(width, vocabulary)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits, (batch, length, vocabulary), of characters, (batch, length)."""
        return self.head(self.recurrent(self.tokens(x))[0])


class ClickMlp(nn.Module):
    """A click model without tables: three linear layers and one logit, 0.09 M parameters for 253 features."""

    def __init__(self, num_features: int, widths: tuple[int, int] = (256, 96)) -> None:
        super().__init__()
        first, second = widths
        self.layers = nn.Sequential(
            nn.Linear(num_features, first), nn.ReLU(), nn.Linear(first, second), nn.ReLU(), nn.Linear(second, 1)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Return one logit a sample, (batch, 1), of features, (batch, features)."""
        return self.layers(x)
