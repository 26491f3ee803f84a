"""Triton's interpreter, patching `triton.language` once per launch in place of each device function call."""

from triton.runtime import interpreter


def install():
    """Patch once for each module of functions and launch."""
    patched = set()
    launch = interpreter.GridExecutor.__call__

    def launch_patched(self, *args, **kwargs):
        patched.clear()
        return launch(self, *args, **kwargs)

    def call(self, *args, **kwargs):
        module = id(self.fn.__globals__)
        if module not in patched:
            patched.add(module)
            interpreter._patch_lang(self.fn)
        return self.rewrite()(*args, **kwargs)

    interpreter.GridExecutor.__call__ = launch_patched
    interpreter.InterpretedFunction.__call__ = call
