"""PyTorch/XLA on an NVIDIA GPU, all of it in one command, each step in a process of its own.

    PYTHONPATH=python python tests/gpu/torch_xla_suite.py [STEP...]

For a Python with torch 2.9, torch_xla 2.9, numpy and ml_dtypes; step `pytest` needs pytest as well.
JAX for the comparison may be in another Python (--jax-python). Without a GPU the same steps run on
the CPU, smaller (--small), but for the untyped calls.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / folder) for folder in ("oracle", "torch_xla")]
os.environ.setdefault("PJRT_DEVICE", "XLA_GPU")
SAME_AS_JAX = 1.15


def say(text: str) -> None:
    print(text, flush=True)


def environment(**more: str) -> dict[str, str]:
    path = os.pathsep.join([str(ROOT / "python"), os.environ.get("PYTHONPATH", "")])
    return dict(os.environ, PYTHONPATH=path, **more)


def run(command: list[str], env: dict[str, str] | None = None) -> str:
    """The standard output; what went wrong, with both outputs, if it failed."""
    done = subprocess.run(
        command, env=env or environment(), capture_output=True, text=True, cwd=ROOT
    )
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)}\n{done.stdout[-4000:]}\n{done.stderr[-6000:]}")
    return done.stdout


# ---- Steps: each gives one line for the summary ------------------------------------------------


def classic(options: argparse.Namespace) -> str:
    """examples/torch_xla/minimal_xla_custom_call.py by every API version."""
    script = str(ROOT / "examples/torch_xla/minimal_xla_custom_call.py")
    versions = [4] if options.small else [1, 2, 3, 4]
    for version in versions:
        command = [sys.executable, script, "--api-version", str(version)]
        if options.ffi_include:
            command += ["--ffi-include", options.ffi_include]
        out = run(command)
        assert out.splitlines()[-1] == "ok", out
        say(out)
    return f"API versions {', '.join(map(str, versions))}"


def _property(options: argparse.Namespace, compiled: bool) -> str:
    from compare import Histogram
    from property_cases import attention_group, platform, update_group

    groups, cases = (3, 4) if options.small else (36, 16)
    histogram, failed = Histogram(), []
    for group in range(groups + groups // 3):
        try:
            if group < groups:
                text = attention_group([270, group], cases, compiled, histogram)
            else:
                text = update_group([280, group], cases, compiled)
            if group in (0, groups):
                say(next(line for line in text.splitlines() if "custom_call_target" in line))
        except Exception as e:
            failed.append(f"group {group}: {type(e).__name__}: {str(e)[:1500]}")
    say(f"error against fp64\n{histogram}")
    assert not failed, "\n".join(failed)
    how = "openxla" if compiled else "eager"
    return (
        f"{how} on {platform()}: {groups * cases} cases of paged_attention, "
        f"{groups // 3 * cases} of update_kv_cache"
    )


def eager(options: argparse.Namespace) -> str:
    """Random problems on lazy tensors."""
    return _property(options, compiled=False)


def openxla(options: argparse.Namespace) -> str:
    """The same under torch.compile(backend="openxla")."""
    return _property(options, compiled=True)


def pytest(options: argparse.Namespace) -> str:
    """The other tests of PyTorch/XLA: configuration, memory, errors, platform names, HLO."""
    if importlib.util.find_spec("pytest") is None:
        return "left out: pytest is not installed"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider"]
    tests = [f"tests/torch_xla/test_xla_{name}.py" for name in ("calls", "models")]
    tests += [f"tests/xla_gpu/test_{name}.py" for name in ("xla_custom_op", "find_platform")]
    out = run([*command, *tests])
    say(out[-3000:])
    return next(line for line in reversed(out.splitlines()) if " passed" in line)


def llama(options: argparse.Namespace) -> str:
    """A small Llama trained, losses equal to the CPU's; and served with paged attention inside."""
    import small_llama
    import torch
    import torch_xla
    import torch_xla.backends
    import xla_gpu.torch_xla

    torch_xla.backends.set_mat_mul_precision("highest")  # XLA's f32 products are TF32 otherwise
    device = torch_xla.device()  # before the first backward pass: autograd then knows of it
    steps = 5 if options.small else 50
    want = small_llama.train("cpu", steps)
    worst = 0.0
    for compiled in (False, True):
        got = small_llama.train(device, steps, torch_xla.sync, compiled)
        worst = max(worst, *(abs(a - b) / abs(b) for a, b in zip(got, want, strict=True)))
        say(f"compiled={compiled}: loss {got[0]:.6f} to {got[-1]:.6f}, CPU {want[-1]:.6f}")
        logits = small_llama.serve(device, 8, torch_xla.sync, compiled)
        for one, other in zip(logits, small_llama.serve("cpu", 8), strict=True):
            torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    assert worst < 1e-3, f"losses differ by {worst:.1e}"
    where = xla_gpu.torch_xla.platform()
    return (
        f"{where}, {steps} steps: losses within {worst:.1e} of torch's on the CPU; 8 served steps"
    )


def decode(options: argparse.Namespace) -> str:
    """A decode step of 32 layers against the same step in JAX."""
    arguments = ["--small"] if options.small else []
    results = {}
    for framework, python in (("jax", options.jax_python), ("torch_xla", sys.executable)):
        env = environment()
        if framework == "jax":  # another Python: its own home and packages
            home = env.pop("PYTHONHOME", None)
            env["PYTHONPATH"] = str(ROOT / "python")
            folders = env.get("LD_LIBRARY_PATH", "").split(os.pathsep)
            kept = [f for f in folders if home is None or not f.startswith(home)]
            env["LD_LIBRARY_PATH"] = os.pathsep.join(kept)
        script = str(ROOT / f"benchmarks/decode_step_{framework}.py")
        line = run([python, script, *arguments], env).strip().splitlines()[-1]
        say(line)
        results[framework] = json.loads(line)
    ours, theirs = results["torch_xla"], results["jax"]
    ratio = ours["ms"] / theirs["ms"]
    difference = max(abs(a - b) for a, b in zip(ours["first"], theirs["first"], strict=True))
    assert ours["finite"] and theirs["finite"]
    assert difference < 0.25, f"the hidden states differ by {difference}"
    assert ours["caches_in_place"], "the caches moved"
    text = (
        f"{ours['layers']} layers: {ours['ms']:.3f} ms under openxla, {theirs['ms']:.3f} ms in "
        f"JAX ({ratio:.2f}x)"
    )
    assert options.small or ratio <= SAME_AS_JAX, f"{text}; allowed is {SAME_AS_JAX}x"
    return text


STEPS = {step.__name__: step for step in (classic, eager, openxla, pytest, llama, decode)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("steps", nargs="*", metavar="STEP", help=f"of {', '.join(STEPS)}")
    parser.add_argument("--small", action="store_true", help="for a try on the CPU")
    parser.add_argument("--jax-python", default="python3")
    parser.add_argument("--ffi-include", help="XLA's FFI headers for step classic")
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        say(f"RESULT {STEPS[options.steps[0]](options)}")
        return 0
    passed, failed = [], []
    flags = [arg for arg in sys.argv[1:] if arg not in options.steps]
    for name in options.steps or list(STEPS):
        say(f"==== {name}")
        start = time.time()
        command = [sys.executable, __file__, name, "--child", *flags]
        done = subprocess.run(command, env=environment(), stdout=subprocess.PIPE, text=True)
        lines = done.stdout.splitlines()
        say("\n".join(line for line in lines if not line.startswith("RESULT ")))
        result = next((line[7:] for line in lines if line.startswith("RESULT ")), "FAILED")
        (failed if done.returncode else passed).append(name)
        say(f"==== {name}: {result} [{time.time() - start:.0f} s]")
    say(f"torch_xla: {len(passed)} passed, {len(failed)} failed {' '.join(failed)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
