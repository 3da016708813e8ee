"""Tokenizers: one token a character for models without a folder, and loading from a Hugging Face folder, offline."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from relax.data.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

PAD_TOKEN, BOS_TOKEN, EOS_TOKEN = "<pad>", "<bos>", "<eos>"
PAD_ID, BOS_ID, EOS_ID = 0, 1, 2
NUM_SPECIAL_TOKENS = 3


def build_char_tokenizer(charset: str) -> PreTrainedTokenizerFast:
    """A tokenizer with ids pad 0, bos 1, eos 2, then one id a character of `charset`, in its order.

    `tokenizer(text)` puts BOS in front (a prompt); `add_special_tokens=False` does not (a response). It saves to and
    loads from a Hugging Face folder with AutoTokenizer unchanged. A character outside `charset` is an error of the
    tokenizers library, never a silent drop.

    Raises:
        ValueError: `charset` is empty or holds a character twice.
    """
    from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    if not charset:
        raise ValueError("model.charset is empty; give the characters of the task, e.g. '0123456789>'")
    repeated = sorted(character for character, count in Counter(charset).items() if count > 1)
    if repeated:
        raise ValueError(f"model.charset={charset!r} holds {repeated} more than once; each character needs one id")
    vocab = {PAD_TOKEN: PAD_ID, BOS_TOKEN: BOS_ID, EOS_TOKEN: EOS_ID}
    vocab.update({character: NUM_SPECIAL_TOKENS + i for i, character in enumerate(charset)})
    # The unknown token is deliberately not in the vocabulary: an unknown character then raises.
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), behavior="isolated")
    tokenizer.decoder = decoders.Fuse()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS_TOKEN} $A", special_tokens=[(BOS_TOKEN, BOS_ID)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD_TOKEN,
        bos_token=BOS_TOKEN,
        eos_token=EOS_TOKEN,
        clean_up_tokenization_spaces=False,
        padding_side="left",
    )


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a Hugging Face folder; the network is never asked.

    Raises:
        DataError: the folder is missing, holds no tokenizer, or its tokenizer cannot be read.
    """
    from transformers import AutoTokenizer

    path = Path(folder).expanduser()
    if not path.is_dir():
        raise DataError(
            f"model folder {str(path)!r} does not exist; set model.source to a local Hugging Face folder "
            "(Relax downloads nothing; `python -m relax.data.prepare --help` lists what it can write)"
        )
    if not any((path / name).is_file() for name in ("tokenizer.json", "tokenizer_config.json", "tokenizer.model")):
        raise DataError(f"model folder {str(path)!r} holds no tokenizer (tokenizer.json); copy it there")
    try:
        return AutoTokenizer.from_pretrained(str(path), local_files_only=True)
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"the tokenizer in {str(path)!r} cannot be read: {error}") from error
