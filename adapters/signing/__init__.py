"""Signs adapter versions, verifies them where they are stored, and verifies signatures of uploads."""
