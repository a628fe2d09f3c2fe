"""Serving measured: the bus, one process, and `infinity-emb`, in turn, with the same files, texts and threads."""
