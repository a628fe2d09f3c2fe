"""What transformers makes at the first load in a process and keeps for all later ones, whatever the model.

The table that renames the weights of older checkpoints takes it longer than reading a small model: some thousand
regular expressions. It holds nothing of any model and starts no thread, so a fork server makes it beforehand. How it
is made is not part of the library's published interface: where it isn't found, the first load makes it as before.
"""

from __future__ import annotations

from transformers import conversion_mapping


def make() -> None:
    """Raises AttributeError where this release of the library has no such table."""
    conversion_mapping.get_checkpoint_conversion_mapping("bert")
