"""From a dataset row to the token ids a model sees: template, system prompt, chat template, tokenization."""

from __future__ import annotations

from typing import TYPE_CHECKING

from relax.config.schema.data import DataConfig
from relax.data.errors import DataError
from relax.data.sample import Messages

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

PLACEHOLDER = "{prompt}"


class PromptRenderer:
    """Renders the prompts of one dataset with one tokenizer.

    Raises (on construction):
        DataError: `prompt_template` lacks `{prompt}`, or `chat_template` is asked of a tokenizer that has none.
    """

    def __init__(self, config: DataConfig, tokenizer: PreTrainedTokenizerBase) -> None:
        if PLACEHOLDER not in config.prompt_template:
            raise DataError(f"data.prompt_template={config.prompt_template!r} lacks '{{prompt}}'; add it")
        if config.chat_template and not tokenizer.chat_template:
            raise DataError(
                f"data.chat_template=true, but the tokenizer of {tokenizer.name_or_path!r} has no chat template; "
                "set data.chat_template=false (and data.prompt_template) or use an instruct model"
            )
        self._config = config
        self._tokenizer = tokenizer

    def apply_templates(self, prompt: str | Messages) -> str | Messages:
        """The prompt with `prompt_template` and `system_prompt`: messages under `chat_template`, else text.

        Raises:
            DataError: messages without `chat_template`, or messages without one of the user.
        """
        config = self._config
        if isinstance(prompt, str):
            text = config.prompt_template.replace(PLACEHOLDER, prompt)
            if not config.chat_template:
                return text if config.system_prompt is None else f"{config.system_prompt}\n\n{text}"
            messages = [{"role": "user", "content": text}]
        else:
            if not config.chat_template:
                raise DataError(
                    f"column data.prompt_key={config.prompt_key!r} holds chat messages; set data.chat_template=true"
                )
            messages = [dict(message) for message in prompt]
            users = [i for i, message in enumerate(messages) if message["role"] == "user"]
            if not users:
                raise DataError(f"chat prompt without a message of role 'user': roles {[m['role'] for m in messages]}")
            last = messages[users[-1]]
            last["content"] = config.prompt_template.replace(PLACEHOLDER, last["content"])
        if config.system_prompt is not None:
            if messages[0]["role"] == "system":
                raise DataError("data.system_prompt is set, but the prompt has a system message already; unset one")
            messages.insert(0, {"role": "system", "content": config.system_prompt})
        return messages

    def encode(self, prompt: str | Messages) -> list[int]:
        """Token ids of a prompt that `apply_templates` returned, with the generation header of a chat.

        Raises:
            DataError: the tokenizer refuses the text (a character outside `model.charset`) or gives no token.
        """
        if isinstance(prompt, str):
            text, special = prompt, True
        else:
            text = self._tokenizer.apply_chat_template(prompt, tokenize=False, add_generation_prompt=True)
            special = False  # the chat template writes its own
        try:
            ids: list[int] = self._tokenizer(text, add_special_tokens=special)["input_ids"]
        except Exception as error:  # the tokenizers library raises bare Exception
            raise DataError(f"the tokenizer refuses the prompt {text[:80]!r} ({error}); see model.charset") from error
        if not ids:
            raise DataError(f"the prompt {text[:80]!r} has no tokens")
        return ids
