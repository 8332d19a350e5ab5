"""A Triton function under @triton.autotune and @triton.heuristics: the configurations of a call."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from xla_gpu._errors import InvalidArgumentError, UnimplementedError
from xla_gpu._triton._meta import shown


@dataclasses.dataclass(frozen=True)
class Configuration:
    """One way to compile a function for a call.

    Attributes:
      values: of all its parameters, constants that were chosen included.
      options: Triton's (num_warps, ...).
      text: what an autotuner calls it; empty without one.
    """

    values: dict[str, Any]
    options: dict[str, Any]
    text: str = ""


def undecorated(kernel: Any) -> Any:
    """The Python function."""
    while hasattr(kernel, "fn"):
        kernel = kernel.fn
    return kernel


class Decorated:
    """A @triton.jit function with its decorators.

    Attributes:
      fn: the JITFunction.
      names: its parameters'.
      tuner: its Autotuner, None without one.
      decided: parameters and options that a decorator says, and which one.
    """

    def __init__(self, name: str, kernel: Any) -> None:
        self.name = name
        self.tuner: Any = None
        self._layers: list[Any] = []  # outermost first, as Triton runs them
        while not hasattr(kernel, "params"):
            kind = type(kernel).__name__
            if kind == "InterpretedFunction":
                raise InvalidArgumentError(
                    f"{name}: Triton interprets it (TRITON_INTERPRET=1), so that there is nothing "
                    "to compile; unset that"
                )
            if not hasattr(kernel, "fn") or not (
                hasattr(kernel, "configs") or hasattr(kernel, "values")
            ):
                raise InvalidArgumentError(
                    f"{name}: it is {kind} {kernel!r}; it must be a @triton.jit function, which "
                    "may be under @triton.autotune and @triton.heuristics"
                )
            if hasattr(kernel, "configs"):
                self._set_tuner(kernel)
            self._layers.append(kernel)
            kernel = kernel.fn
        if getattr(kernel, "is_gluon", bool)():
            raise UnimplementedError(f"{name}: Gluon functions are not supported; Triton's are")
        self.fn = kernel
        self.names: list[str] = [p.name for p in kernel.params]
        self.decided = dict.fromkeys(self._computed(), "@triton.heuristics")
        if self.tuner is not None:
            said = {name for config in self.tuner.configs for name in config.all_kwargs()}
            self.decided |= dict.fromkeys(said, "@triton.autotune")

    def _computed(self) -> list[str]:
        return [n for layer in self._layers if layer is not self.tuner for n in layer.values]

    def _set_tuner(self, tuner: Any) -> None:
        if self.tuner is not None:
            raise UnimplementedError(f"{self.name}: it is under two @triton.autotune; one may be")
        if getattr(tuner, "user_defined_pre_hook", False) or getattr(
            tuner, "user_defined_post_hook", False
        ):
            raise UnimplementedError(
                f"{self.name}: pre_hook and post_hook of @triton.autotune take torch tensors of a "
                "launch by Triton; reset_to_zero and restore_value are supported"
            )
        if any(config.pre_hook is not None for config in tuner.configs):
            raise UnimplementedError(
                f"{self.name}: a triton.Config with a pre_hook changes the arguments of a launch "
                "by Triton, which is not offered here"
            )
        self.tuner = tuner

    def check_globals(self) -> None:
        """InvalidArgumentError where a global that was compiled in has changed since (Triton's)."""
        for (name, _), (value, scope) in self.fn.used_global_vals.items():
            if (now := scope.get(name)) != value:
                raise InvalidArgumentError(
                    f"{self.name}: the global {name}, which it was compiled with, has changed from "
                    f"{value} to {now}"
                )

    def configurations(
        self, values: Mapping[str, Any], options: Mapping[str, Any]
    ) -> list[Configuration]:
        """The ways to compile it for a call: one without an autotuner; at least one.

        `values`: of the parameters that the caller gave, tensors as TensorSpec.
        """
        made = [Configuration(dict(values), dict(options))]
        for layer in self._layers:
            if layer is self.tuner:
                made = [self._with(one, config) for one in made for config in self._pruned(one)]
                continue
            for one in made:
                for name, function in layer.values.items():
                    one.values[name] = function(shown(one.values))
        return made

    def _with(self, one: Configuration, config: Any) -> Configuration:
        said = config.all_kwargs()
        return Configuration(
            one.values | {n: v for n, v in said.items() if n in self.names},
            one.options | {n: v for n, v in said.items() if n not in self.names},
            str(config),
        )

    def _pruned(self, one: Configuration) -> list[Any]:
        """The tuner's configs that prune_configs_by leaves."""
        tuner = self.tuner
        constants = {p.name for p in self.fn.params if p.is_constexpr}
        meta = shown(one.values)
        given = {n: v for n, v in meta.items() if n not in constants}
        chosen = {n: v for n, v in meta.items() if n in constants} | one.options
        configs = list(tuner.configs)
        if tuner.early_config_prune:
            configs = list(tuner.early_config_prune(configs, given, **chosen))
        top = tuner.configs_top_k
        most = int(len(tuner.configs) * top) if isinstance(top, float) and top <= 1 else top
        if tuner.perf_model and len(configs) > most:
            configs.sort(key=lambda c: tuner.perf_model(**given, **chosen, **c.all_kwargs()))
            configs = configs[:most]
        if not configs:
            raise InvalidArgumentError(f"{self.name}: prune_configs_by left no configuration")
        return configs
