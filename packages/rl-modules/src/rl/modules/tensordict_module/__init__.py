"""The import paths of recurrent modules that users of TorchRL know."""
