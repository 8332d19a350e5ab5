"""The JAX half of `make demo`; the same as `python -m xla_gpu.demo`."""

import sys
from pathlib import Path

if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
    from xla_gpu.demo import main

    sys.exit(main())
