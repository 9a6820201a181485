"""The pages of retention: periods, legal holds, and certificates of deletion."""
