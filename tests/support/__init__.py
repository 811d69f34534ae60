"""What tests share: worlds to act in, processes to harm, ways to wait."""
