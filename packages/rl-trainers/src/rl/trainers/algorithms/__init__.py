"""Training algorithms, a page a family: settings, policy, loss, and the `Algorithm` that puts them together.

A page imports no torch before it trains, and is what one copies to write an algorithm of one's own.
"""
