"""Signs and verifies adapters in the format of OpenSSF Model Signing 1.0. Knows no store."""
