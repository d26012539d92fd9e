"""StereoRL: an agent that learns from being used.

It hears two signals after each action (was it good? how should it have been different?), fuses them into one
objective, trains in the background and swaps the new weights in while it serves.
"""

__version__ = "0.1.0"
