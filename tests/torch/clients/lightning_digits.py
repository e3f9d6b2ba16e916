"""lightning_digits.py - Lightning's Trainer with its DDP strategy on the backend: metrics over all ranks, validation, a checkpoint."""
import tempfile

import torch
import torch.distributed as dist
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.strategies import DDPStrategy
from torch.utils.data import DataLoader, TensorDataset

import common


class Digits(LightningModule):
    """The classifier with metrics that Lightning averages over the ranks."""

    def __init__(self) -> None:
        super().__init__()
        self.model = common.mlp()

    def training_step(self, batch: list[torch.Tensor], number: int) -> torch.Tensor:
        loss = torch.nn.functional.cross_entropy(self.model(batch[0]), batch[1])
        self.log("loss", loss, sync_dist=True, on_epoch=True)
        return loss

    def validation_step(self, batch: list[torch.Tensor], number: int) -> None:
        right = (self.model(batch[0]).argmax(1) == batch[1]).float().mean()
        self.log("right", right, sync_dist=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.3)


def main() -> None:
    common.register()
    watch = common.watch_gloo()
    seed_everything(3)
    images, labels = common.digits()
    loader = DataLoader(TensorDataset(images, labels), batch_size=32)
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(accelerator="cpu", devices=2, max_epochs=6, strategy=DDPStrategy(process_group_backend=common.BACKEND),
                          default_root_dir=folder, logger=False, enable_progress_bar=False, enable_model_summary=False)
        model = Digits()
        trainer.fit(model, loader, loader)
    right = trainer.callback_metrics["right"].item()
    assert right > 0.85, right
    assert dist.get_backend() == common.BACKEND
    common.same_everywhere(model.model.parameters())
    common.check_calls(watch, ("distributed.py:__enter__",))  # Lightning's own barrier asks for gloo by name
    common.finish({"right": right, "weights": common.norm(model.model.parameters())})


if __name__ == "__main__":
    main()
