"""The grid of bench_gpu.py: cases, inputs, peers, timing, results, report and plots."""
