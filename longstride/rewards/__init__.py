"""From an answer to a reward: verifiers, format and the overlong penalty."""
