"""Real tokenizers with vocabularies made by hand: nothing is trained, so that they are the same bytes each time."""

from __future__ import annotations

from typing import Any

TEXT = (
    "the a of to in is it what who where when how does jump over fox quick brown lazy dog rain snow sun city river "
    "berlin paris capital people live mountain high music song plays piano"
)
WORDS = TEXT.split()
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789"
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def word_pieces(length_max: int) -> Any:
    """BERT's kind: lower case, words and letters; what is neither is [UNK]."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokens = [*SPECIAL, *WORDS, *(each for each in LETTERS if each not in WORDS), *(f"##{each}" for each in LETTERS)]
    vocabulary = {token: number for number, token in enumerate([*tokens, ".", ",", "?", "!"])}
    made = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.BertProcessing(("[SEP]", vocabulary["[SEP]"]), ("[CLS]", vocabulary["[CLS]"]))
    return PreTrainedTokenizerFast(
        tokenizer_object=made,
        model_max_length=length_max,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def byte_pairs(special: dict[str, str], *, template: str | None = None, length_max: int | None = None) -> Any:
    """GPT-2's kind: each byte is a token, and a few merges. `special` maps a role (`eos_token`) to its text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = [("t", "h"), ("th", "e"), ("i", "n"), ("a", "n"), ("an", "d"), ("Ġ", "the"), ("Ġ", "a"), ("q", "u")]
    tokens = [*special.values(), *alphabet, *(left + right for left, right in merges)]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    made = Tokenizer(models.BPE(vocabulary, merges))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, clean_up_tokenization_spaces=False, model_max_length=length_max or 10**9, **special
    )
    tokenizer.chat_template = template
    return tokenizer
