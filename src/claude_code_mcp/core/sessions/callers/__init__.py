"""What each caller has: its environment, the policy on it, its limits, and access to sessions of others."""
