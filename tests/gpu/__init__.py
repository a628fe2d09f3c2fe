"""The check on hardware: `make gpu-check`, or `python -m tests.gpu` on a machine with an NVIDIA GPU.

It needs this repository with the `worker` extra, torch with CUDA, and a driver; no servers. It loads small models with
the production code, holds the driver's count against the allocator's, shows a stranger's memory as external use,
measures reclaim and writes what it saw as JSON. Where there is no GPU it says so and exits with 3: it never pretends.
"""
