"""The import paths of world models that users of TorchRL know."""
