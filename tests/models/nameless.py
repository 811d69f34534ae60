"""A module whose function does not have the expected signature."""


def build_modle(hparams):
    return None
