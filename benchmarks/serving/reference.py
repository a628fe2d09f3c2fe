"""The reference: sentence-transformers in one process, as its users call it, with torch's and OpenMP's own defaults.

    python -m benchmarks.serving.reference FOLDER THREADS

Loads once and says `ready`. Each line of input is `BATCH CALLS PATH`: encode CALLS batches of BATCH sentences, write
the vectors to PATH (.npy, in order), print what it took as a line of JSON. Between lines it sleeps.
"""

from __future__ import annotations

import json
import sys
import time

import numpy
import torch
from sentence_transformers import SentenceTransformer

from benchmarks.serving.sentences import sentence

WARM_UP = 3


def main() -> None:
    folder, threads = sys.argv[1], int(sys.argv[2])
    torch.set_num_threads(threads)
    model = SentenceTransformer(folder, device="cpu", local_files_only=True)
    print("ready", flush=True)
    for line in sys.stdin:
        size, calls, path = line.split()
        batches = [[sentence(call * int(size) + at) for at in range(int(size))] for call in range(int(calls))]
        for batch in batches[:WARM_UP]:
            model.encode(batch, normalize_embeddings=True, show_progress_bar=False)
        vectors, took_ms = [], []
        used, begun = time.process_time(), time.perf_counter()
        for batch in batches:
            before = time.perf_counter()
            vectors.append(model.encode(batch, normalize_embeddings=True, show_progress_bar=False))
            took_ms.append((time.perf_counter() - before) * 1000)
        seconds, cpu_s = time.perf_counter() - begun, time.process_time() - used
        numpy.save(path, numpy.concatenate(vectors))
        print(json.dumps({"seconds": seconds, "cpu_s": cpu_s, "latencies_ms": took_ms}), flush=True)


if __name__ == "__main__":
    main()
