"""Defines the client `resnet`, which classifies images. Its defaults are a ResNet's: the shorter
side is resized to 1/0.875 of the network's, the centre is cropped, and pixels are normalized by
ImageNet's mean and std."""

from clients import image_classification


class Client(image_classification.Client):
    """Serves a ResNet, or any other image classifier whose config.pbtxt names the client
    `resnet`."""
