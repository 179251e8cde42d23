"""Networks: the registry, the families of the paper's Table 1, their files, exactness and restriction."""

from coattend.models import zoo as zoo
from coattend.models.blocks import Blocks as Blocks
from coattend.models.blocks import named as named
from coattend.models.contributions import Measure as Measure
from coattend.models.contributions import Probe as Probe
from coattend.models.contributions import contributions as contributions
from coattend.models.convert import convert_state_dict as convert_state_dict
from coattend.models.factory import create_model as create_model
from coattend.models.factory import exactness_line as exactness_line
from coattend.models.network import EquivariantNetwork as EquivariantNetwork
from coattend.models.network import FeatureBackbone as FeatureBackbone
from coattend.models.network import ModelConfig as ModelConfig
from coattend.models.pretrained import list_pretrained as list_pretrained
from coattend.models.registry import ModelEntry as ModelEntry
from coattend.models.registry import list_models as list_models
from coattend.models.registry import model_entry as model_entry
from coattend.models.registry import network_name as network_name
from coattend.models.registry import register_model as register_model
from coattend.models.restriction import choose_poses as choose_poses
from coattend.models.restriction import group_convolutions as group_convolutions
from coattend.models.restriction import restricted as restricted
from coattend.models.restriction import restricted_poses as restricted_poses
from coattend.models.serialization import load_model as load_model
from coattend.models.serialization import push_model as push_model
from coattend.models.serialization import read_model_file as read_model_file
from coattend.models.serialization import save_model as save_model
