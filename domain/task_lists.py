"""Names of the task lists of a job: one for each environment and split that its groups draw from."""


def own_list(environment: int, split: str) -> str:
    """List of a split of the job's own environment at this place of the spec."""
    return split if environment == 0 else f"environments/{environment}/{split}"


def evaluated_list(environment: int, split: str) -> str:
    """List of an environment that is only evaluated, at this place of `evaluation.environments`."""
    return f"evaluation/environments/{environment}/{split}"
