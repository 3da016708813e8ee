"""The default job as one plain single-process loop over transformers: what Relax's overhead is measured against.

python benchmarks/plain_loop.py --model FOLDER --steps N prints the seconds of every step as JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import time

import torch
import torch.nn.functional as F
from transformers import AutoModelForCausalLM, AutoTokenizer, DynamicCache

PROMPTS, GROUP, DIGITS = 32, 8, 4


def generate(model, prompts: torch.Tensor, eos: int, pad: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Sample DIGITS + 1 tokens; ids and log-probs [B, DIGITS + 1]."""
    cache, ids, done = DynamicCache(config=model.config), prompts, torch.zeros(len(prompts), dtype=torch.bool)
    tokens, log_probs = [], []
    for _ in range(DIGITS + 1):
        logits = model(input_ids=ids, cache=cache, use_cache=True, logits_to_keep=1).logits[:, -1].float()
        scores = F.log_softmax(logits, -1)
        drawn = torch.where(done, pad, torch.multinomial(scores.exp(), 1)[:, 0])
        tokens.append(drawn)
        log_probs.append(scores.gather(1, drawn[:, None])[:, 0])
        done |= drawn == eos
        ids = drawn[:, None]
    return torch.stack(tokens, 1), torch.stack(log_probs, 1)


def train_step(model, optimizer, tokenizer, rng: random.Random) -> float:
    """One GRPO step; mean reward."""
    texts = ["".join(rng.choice("0123456789") for _ in range(DIGITS)) for _ in range(PROMPTS)]
    prompts = torch.tensor([tokenizer.encode(f"{text}>") for text in texts]).repeat_interleave(GROUP, 0)
    width, eos = prompts.shape[1], tokenizer.eos_token_id
    with torch.no_grad():
        tokens, old = generate(model, prompts, eos, tokenizer.pad_token_id)
    rewards, mask = torch.zeros(len(tokens)), torch.zeros(tokens.shape)
    for row, ids in enumerate(tokens.tolist()):
        end = ids.index(eos) if eos in ids else len(ids)
        mask[row, : end + 1] = 1
        rewards[row] = float(eos in ids and tokenizer.decode(ids[:end]) == texts[row // GROUP][::-1])
    groups = rewards.view(-1, GROUP)
    advantages = ((groups - groups.mean(1, keepdim=True)) / (groups.std(1, keepdim=True) + 1e-6)).flatten()[:, None]
    sequence = torch.cat([prompts, tokens], 1)
    logits = model(input_ids=sequence).logits[:, width - 1 : -1].float()
    log_probs = F.log_softmax(logits, -1).gather(-1, tokens[..., None])[..., 0]
    ratio = (log_probs - old).exp()
    loss = torch.maximum(-ratio * advantages, -ratio.clamp(0.8, 1.28) * advantages)
    optimizer.zero_grad()
    ((loss * mask).sum() / mask.sum()).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return float(rewards.mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="Hugging Face folder of the tiny model")
    parser.add_argument("--steps", type=int, default=40)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_pretrained(arguments.model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(arguments.model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.0)
    rng, seconds = random.Random(0), []
    for _ in range(arguments.steps):
        start = time.perf_counter()
        train_step(model, optimizer, tokenizer, rng)
        seconds.append(time.perf_counter() - start)
    print(json.dumps(seconds))


if __name__ == "__main__":
    main()
