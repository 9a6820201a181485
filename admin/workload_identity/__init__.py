"""The pages of workload identity: trusted token issuers, and which of their tokens act as what."""
