"""Published models of images as layers, by formula."""

from collections.abc import Sequence

from pliant.spec.layers import Layer, conv, linear, norm

__all__ = ["densenet121", "inception_v3", "resnet18", "resnet50", "resnet101", "vgg16", "vgg19"]


def _vgg(depths: Sequence[int]) -> list[Layer]:
    """VGG of 224 x 224 images (Simonyan and Zisserman, arXiv:1409.1556), most of whose parameters are in one matrix."""
    layers: list[Layer] = []
    cin, size = 3, 224
    for depth, cout in zip(depths, (64, 128, 256, 512, 512), strict=True):
        for _ in range(depth):
            layers.append(conv(f"features.{len(layers)}", cin, cout, 3, size, bias=True))
            cin = cout
        size //= 2
    widths = (512 * 7 * 7, 4096, 4096, 1000)
    return [*layers, *(linear(f"classifier.{k}", widths[k], widths[k + 1]) for k in range(3))]


def vgg16() -> list[Layer]:
    """VGG16: 138.4 M parameters."""
    return _vgg((2, 2, 3, 3, 3))


def vgg19() -> list[Layer]:
    """VGG19: 143.7 M parameters."""
    return _vgg((2, 2, 4, 4, 4))


def _bottlenecks(depths: Sequence[int]) -> list[Layer]:
    """ResNet of 224 x 224 images (He et al., arXiv:1512.03385), of blocks of three convolutions."""
    layers = [conv("conv1", 3, 64, 7, 112), norm("bn1", "BatchNorm2d", 64)]
    cin = 64
    for stage, (blocks, width, size) in enumerate(zip(depths, (64, 128, 256, 512), (56, 28, 14, 7), strict=True), 1):
        for block in range(blocks):
            at = f"layer{stage}.{block}"
            for k, (a, b, kernel) in enumerate(((cin, width, 1), (width, width, 3), (width, 4 * width, 1)), 1):
                layers += [conv(f"{at}.conv{k}", a, b, kernel, size), norm(f"{at}.bn{k}", "BatchNorm2d", b)]
            if block == 0:
                layers.append(conv(f"{at}.downsample.0", cin, 4 * width, 1, size))
                layers.append(norm(f"{at}.downsample.1", "BatchNorm2d", 4 * width))
            cin = 4 * width
    return [*layers, linear("fc", 2048, 1000)]


def resnet50() -> list[Layer]:
    """ResNet-50: 25.6 M parameters in 161 tensors."""
    return _bottlenecks((3, 4, 6, 3))


def resnet101() -> list[Layer]:
    """ResNet-101: 44.5 M parameters."""
    return _bottlenecks((3, 4, 23, 3))


def resnet18() -> list[Layer]:
    """ResNet-18 of 32 x 32 images and ten classes, as for CIFAR-10: 11.2 M parameters."""
    layers = [conv("conv1", 3, 64, 3, 32), norm("bn1", "BatchNorm2d", 64)]
    cin = 64
    for stage, (width, size) in enumerate(((64, 32), (128, 16), (256, 8), (512, 4)), 1):
        for block in range(2):
            at = f"layer{stage}.{block}"
            for k, a in enumerate((cin, width), 1):
                layers += [conv(f"{at}.conv{k}", a, width, 3, size), norm(f"{at}.bn{k}", "BatchNorm2d", width)]
            if cin != width:
                layers.append(conv(f"{at}.downsample.0", cin, width, 1, size))
                layers.append(norm(f"{at}.downsample.1", "BatchNorm2d", width))
            cin = width
    return [*layers, linear("fc", 512, 10)]


def densenet121() -> list[Layer]:
    """DenseNet-121 of 224 x 224 images (Huang et al., arXiv:1608.06993): 8.0 M parameters in 364 tensors."""
    growth, width = 32, 64
    layers = [conv("conv0", 3, width, 7, 112), norm("norm0", "BatchNorm2d", width)]
    for stage, (depth, size) in enumerate(((6, 56), (12, 28), (24, 14), (16, 7)), 1):
        for block in range(depth):
            at = f"block{stage}.{block}"
            layers += [norm(f"{at}.norm1", "BatchNorm2d", width), conv(f"{at}.conv1", width, 4 * growth, 1, size)]
            layers.append(norm(f"{at}.norm2", "BatchNorm2d", 4 * growth))
            layers.append(conv(f"{at}.conv2", 4 * growth, growth, 3, size))
            width += growth
        layers.append(norm(f"norm{stage}", "BatchNorm2d", width))
        if stage < 4:
            layers.append(conv(f"transition{stage}", width, width // 2, 1, size))
            width //= 2
    return [*layers, linear("classifier", width, 1000)]


def _unit(at: str, cin: int, cout: int, height: int, width: int, size: int) -> list[Layer]:
    """Return a convolution of height x width and its normalization."""
    operations = 2.0 * height * width * cin * cout * size * size
    one = Layer(f"{at}.conv", "Conv2d", (("weight", (cout, cin, height, width)),), operations)
    return [one, norm(f"{at}.bn", "BatchNorm2d", cout)]


def _branch(at: str, cin: int, size: int, *units: tuple[int, int, int]) -> list[Layer]:
    """Return units of (channels, height, width), one after another."""
    layers: list[Layer] = []
    for k, (cout, height, width) in enumerate(units):
        layers += _unit(f"{at}.{k}", cin, cout, height, width, size)
        cin = cout
    return layers


def inception_v3() -> list[Layer]:
    """Inception-v3 of 299 x 299 images (Szegedy et al., arXiv:1512.00567) without its second head: 23.8 M weights."""
    layers: list[Layer] = []
    for k, (cin, cout, kernel, size) in enumerate(
        ((3, 32, 3, 149), (32, 32, 3, 147), (32, 64, 3, 147), (64, 80, 1, 73), (80, 192, 3, 71))
    ):
        layers += _unit(f"stem.{k}", cin, cout, kernel, kernel, size)
    for k, (cin, pool) in enumerate(((192, 32), (256, 64), (288, 64))):
        at = f"a.{k}"
        layers += _branch(f"{at}.one", cin, 35, (64, 1, 1)) + _branch(f"{at}.five", cin, 35, (48, 1, 1), (64, 5, 5))
        layers += _branch(f"{at}.three", cin, 35, (64, 1, 1), (96, 3, 3), (96, 3, 3))
        layers += _branch(f"{at}.pool", cin, 35, (pool, 1, 1))
    layers += _branch("b.three", 288, 17, (384, 3, 3)) + _branch(
        "b.double", 288, 17, (64, 1, 1), (96, 3, 3), (96, 3, 3)
    )
    for k, mid in enumerate((128, 160, 160, 192)):
        at = f"c.{k}"
        layers += _branch(f"{at}.one", 768, 17, (192, 1, 1))
        layers += _branch(f"{at}.seven", 768, 17, (mid, 1, 1), (mid, 1, 7), (192, 7, 1))
        layers += _branch(f"{at}.twice", 768, 17, (mid, 1, 1), (mid, 7, 1), (mid, 1, 7), (mid, 7, 1), (192, 1, 7))
        layers += _branch(f"{at}.pool", 768, 17, (192, 1, 1))
    layers += _branch("d.three", 768, 8, (192, 1, 1), (320, 3, 3))
    layers += _branch("d.seven", 768, 8, (192, 1, 1), (192, 1, 7), (192, 7, 1), (192, 3, 3))
    for k, cin in enumerate((1280, 2048)):
        at = f"e.{k}"
        layers += _branch(f"{at}.one", cin, 8, (320, 1, 1)) + _branch(f"{at}.pool", cin, 8, (192, 1, 1))
        layers += _branch(f"{at}.three", cin, 8, (384, 1, 1)) + _branch(
            f"{at}.double", cin, 8, (448, 1, 1), (384, 3, 3)
        )
        for side in ("three", "double"):
            layers += _branch(f"{at}.{side}.wide", 384, 8, (384, 1, 3)) + _branch(
                f"{at}.{side}.high", 384, 8, (384, 3, 1)
            )
    return [*layers, linear("fc", 2048, 1000)]
