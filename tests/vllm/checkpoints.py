"""Checkpoints by name: a kind, or a kind and what `other_models` makes of it, "qwen3moe fp8"."""

from __future__ import annotations

import functools
import pathlib
import threading

import other_models
import tiny_images
import tiny_models


class Checkpoints:
    """Tiny checkpoints below `folder`, each written when it is first asked for."""

    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        self._making = threading.RLock()  # threads share torch's random numbers

    def __call__(self, name: str) -> pathlib.Path:
        """The folder of a checkpoint, the name of which is its own."""
        folder = self.folder / name
        with self._making:
            if not folder.exists():
                kind, _, form = name.partition(" ")
                if form:
                    other_models.make(self._plain(kind, form), folder, form)
                else:
                    (tiny_images if kind in tiny_images.KINDS else tiny_models).make(kind, folder)
        return folder

    def _plain(self, kind: str, form: str) -> pathlib.Path:
        """What the form is made of.

        For mxfp4 the size of experts is no multiple of 128, half of it none of 64.
        """
        if form != "mxfp4":
            return self(kind)
        return tiny_models.make(kind, self.folder / f"{kind} before {form}", intermediate_size=192)

    @functools.cache  # noqa: B019  as long as the tests that use it
    def reference(self, name: str) -> tiny_models.Reference:
        """transformers' own model of it, of quantized weights the floats that they stand for."""
        kind, _, form = name.partition(" ")
        folder = self(name)
        if kind in tiny_images.KINDS:
            return tiny_images.Reference(folder)
        model = tiny_models.Reference(other_models.floats(folder) if form else folder)
        if form.startswith("compressed"):  # served in float32; fp8 ones in steps of few tokens
            other_models.round_activations(model.model, form)
        return model
