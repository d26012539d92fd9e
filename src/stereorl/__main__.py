"""`python -m stereorl` is `stereorl`."""

from stereorl.cli.main import main

if __name__ == "__main__":
    main()
