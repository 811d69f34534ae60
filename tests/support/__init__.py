"""What the tests share: environments, fault injection, and ways to wait."""
