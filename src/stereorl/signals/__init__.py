"""From a next state to signals: votes and a verdict, a hint, the teacher's log-probs under that hint."""
