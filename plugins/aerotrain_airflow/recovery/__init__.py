"""What the events of a run add up to: its goodput, and with how many workers a next try begins."""
