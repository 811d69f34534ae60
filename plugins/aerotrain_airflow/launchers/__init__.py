"""What runs replicas as pods, until it is a backend."""
