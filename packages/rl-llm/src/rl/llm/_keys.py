"""Keys of the entries of a batch of tokens, and what to do when one is absent."""

from __future__ import annotations

from rl.core.keys import ADVANTAGE, NestedKey

TOKENS: NestedKey = ("tokens", "full")
SEQUENCE: NestedKey = ("tokens", "sequence")
ATTENTION: NestedKey = ("masks", "all_attention_mask")
TRAINED: NestedKey = ("masks", "all_assistant_mask")
LOG_PROBS: NestedKey = ("log_probs", "full")
OLD: NestedKey = ("old_log_probs", "full")
REFERENCE: NestedKey = ("ref_log_probs", "full")
TEACHER: NestedKey = ("teacher_log_probs", "full")
ENTROPY: NestedKey = ("entropy", "full")
WEIGHT: NestedKey = "token_weight"
GROUP: NestedKey = "group"
VERSION: NestedKey = "policy_version"

REMEDIES: dict[NestedKey, str] = {
    ADVANTAGE: "Run MCAdvantage before.",
    TRAINED: "Build the batch with padded or packed of rl.llm, or set_keys(mask=...).",
    LOG_PROBS: "They are those of the sampler, recorded with the tokens.",
    OLD: "Score the batch with the policy before the update, or leave out the correction (bypass).",
    REFERENCE: "Score the batch with the reference policy, or set kl_to_ref_coeff=None.",
    TEACHER: "Score the batch with the teacher.",
}
