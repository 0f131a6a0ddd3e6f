"""The environment author's kit: write a class, its tools and its rewards; standard library only."""
