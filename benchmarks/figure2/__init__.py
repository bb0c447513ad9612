"""GRPO, DAPO and CISPO where rare reflection tokens decide: MiniMax-M1's figure 2 at our scale."""
