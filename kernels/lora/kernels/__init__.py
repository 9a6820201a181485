"""LoRA in Triton."""
