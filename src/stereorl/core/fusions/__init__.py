"""The fusions, one to a file. A further one is a file here (or anywhere) and a line in `stereorl.choices.FUSIONS`."""
