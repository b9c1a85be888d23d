"""Training by Ray Train: ray job submit --runtime-env recipes/ray_runtime_env.yaml -- python ray_train.py."""

import torch
from ray.train import ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer, get_device, prepare_model
from torch import nn

import pliant


def train(settings: dict) -> None:
    """Train on one worker; Ray has made the process group."""
    model = prepare_model(nn.Linear(512, 10))  # a DDP
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    with pliant.relax(model, optimizer, settings["plan"]):
        for _ in range(settings["steps"]):
            inputs = torch.randn(32, 512, device=get_device())
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(inputs), inputs[:, :10].argmax(1)).backward()
            optimizer.step()


if __name__ == "__main__":
    TorchTrainer(
        train,
        train_loop_config={"plan": "onebit", "steps": 100},
        scaling_config=ScalingConfig(num_workers=2, use_gpu=False),
        torch_config=TorchConfig(backend="gloo"),
    ).fit()
