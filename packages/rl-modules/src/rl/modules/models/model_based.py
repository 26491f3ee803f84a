"""World models of Dreamer under the path that users of TorchRL know; the same objects as in `rl.modules`."""

from rl.modules.world_models._encoders import DreamerActor, ObsDecoder, ObsEncoder
from rl.modules.world_models._rollout import RSSMRollout
from rl.modules.world_models._rssm import RSSMPosterior, RSSMPrior

__all__ = ["DreamerActor", "ObsDecoder", "ObsEncoder", "RSSMPosterior", "RSSMPrior", "RSSMRollout"]
