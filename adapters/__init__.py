"""Tenants' LoRA adapters: storage, inspection, packing, calibration, jobs, and the models they serve."""
