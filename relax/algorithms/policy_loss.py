"""Policy losses over response tokens (being written: `PolicyTokens` and `policy_loss` are the contract)."""
