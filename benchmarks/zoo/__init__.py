"""The eight published workloads of EasyScale (SC'23), small for a CPU and at full size for a GPU.

Models, generated data, losses and optimizers; `train.py` trains one with EasyScale, `stock.py` by hand with stock DDP.
Nothing here is imported by src/.
"""

from __future__ import annotations

from benchmarks.zoo import language, neumf, pictures, yolov3, yolov3_loss
from benchmarks.zoo.optimizers import adam, adamw, sgd
from benchmarks.zoo.record import Size, Workload

__all__ = ["MODELS", "Size", "Workload"]

PICTURES = {"data": pictures.pictures, "loss": pictures.classification}
MODELS: dict[str, Workload] = {
    "shufflenetv2": Workload(
        title="ShuffleNetV2", batch=128, build=pictures.shufflenet, optimizer=sgd(0.1, 4e-5), **PICTURES
    ),
    "resnet50": Workload(title="ResNet50", batch=64, build=pictures.resnet50, optimizer=sgd(0.025, 1e-4), **PICTURES),
    "vgg19": Workload(title="VGG19", batch=32, build=pictures.vgg19, optimizer=sgd(0.01, 5e-4), **PICTURES),
    "yolov3": Workload(
        title="YOLOv3", batch=8, build=yolov3.yolov3, data=yolov3_loss.boxes, loss=yolov3_loss.found,
        optimizer=sgd(1e-3, 5e-4), clip=10.0,
    ),
    "neumf": Workload(
        title="NeuMF", batch=1024, build=neumf.neumf, data=neumf.ratings, loss=neumf.rated, optimizer=adam(1e-3)
    ),
    "bert": Workload(
        title="BERT", batch=8, build=language.bert, data=language.questions, loss=language.answer,
        optimizer=adamw(3e-5, 0.01), clip=1.0,
    ),
    "electra": Workload(
        title="ELECTRA", batch=8, build=language.electra, data=language.questions, loss=language.detection,
        optimizer=adamw(2e-4, 0.01), clip=1.0,
    ),
    "swin": Workload(
        title="Swin", batch=32, build=pictures.swin, optimizer=adamw(1.25e-4, 0.05), clip=5.0, **PICTURES
    ),
}  # fmt: skip
