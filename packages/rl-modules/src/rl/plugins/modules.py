"""What rl-modules offers, as data."""

from collections.abc import Iterator

from rl.core.components import Component
from rl.core.hookspecs import hookimpl

_MODULES = (
    ("mlp", "MLP", "Linear layers with activations between them"),
    ("convnet", "ConvNet", "Convolutions on pixels, flattened to features"),
    ("categorical-head", "CategoricalHead", "Features to logits"),
    ("normal-head", "NormalHead", "Features to mean and standard deviation"),
    ("normal-param-extractor", "NormalParamExtractor", "Splits features into mean and standard deviation"),
    ("actor", "Actor", "Policy that computes its action"),
    ("probabilistic-actor", "ProbabilisticActor", "Policy that draws its action from a distribution"),
    ("value-operator", "ValueOperator", "Value of a state, or of a state and an action"),
    ("q-value-actor", "QValueActor", "Values of all actions, and the choice of the best"),
    ("q-value-module", "QValueModule", "Action values to the best action"),
    ("actor-value-operator", "ActorValueOperator", "Policy and state value on one trunk"),
    ("actor-critic-operator", "ActorCriticOperator", "Policy and action value on one trunk"),
    ("actor-critic-wrapper", "ActorCriticWrapper", "Policy and critic as one module"),
    ("egreedy", "EGreedyModule", "Random actions with a falling probability"),
    ("additive-gaussian", "AdditiveGaussianModule", "Falling normal noise on continuous actions"),
)


@hookimpl
def rl_components() -> Iterator[Component]:
    """Networks, policies, critics and exploration."""
    for name, attribute, summary in _MODULES:
        yield Component(kind="module", name=name, target=f"rl.modules:{attribute}", summary=summary)
