"""XLA_GPU_LIBRARY=... python hashes.py REGEX: a hash of each shape's result; run per build and diff."""
import hashlib, pathlib, re, sys
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "benchmarks"))
import torch
from peers import cases, inputs, kernels
ours = next(p for p in kernels.PEERS if p.name == "ours"); ours.find()
more = [cases._decode("x", b, c, q, **m) for b, c, q, m in [
    (3, 1, 1, dict(q_heads=16, kv_heads=1)), (5, 63, 2, {}), (5, 65, 8, {}), (7, 300, 5, {}),
    (2, 8192, 4, {}), (2, 8256, 8, {}), (1, 20001, 8, {}), (9, 1000, 8, dict(head_dim=64)),
    (9, 1000, 3, dict(dtype="float16", cache="float16")), (9, 777, 8, dict(window=100))]]
for case in [*(c for c in cases.CASES if re.search(sys.argv[1], f"{c.regime}: {c.name}")), *more]:
    given = inputs.Inputs(case, "cuda", 1 << 20)
    call = ours.prepare(given); call.run(0); out = call.result(); torch.cuda.synchronize()
    print(case.name, f"{given.error(out):.1e}", hashlib.sha256(out.cpu().contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()[:16], flush=True)
