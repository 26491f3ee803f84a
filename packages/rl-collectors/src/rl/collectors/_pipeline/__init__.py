"""What a collector is made of: arguments, environment, policy, their devices, and a description of them."""
