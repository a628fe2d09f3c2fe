"""Adapters of models that read text: `embedding`, `rerank` and `text_generation`."""
