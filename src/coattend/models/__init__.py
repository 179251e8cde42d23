"""The networks of the paper's Table 1: families, registry, exactness, files."""

from coattend.models.convert import convert_state_dict as convert_state_dict
from coattend.models.exactness import exactness_line as exactness_line
from coattend.models.exactness import is_exact as is_exact
from coattend.models.files import load_model as load_model
from coattend.models.files import push_model as push_model
from coattend.models.files import read_model_file as read_model_file
from coattend.models.files import save_model as save_model
from coattend.models.network import EquivariantNetwork as EquivariantNetwork
from coattend.models.network import FeatureBackbone as FeatureBackbone
from coattend.models.pretrained import list_pretrained as list_pretrained
from coattend.models.registry import create_model as create_model
from coattend.models.registry import list_models as list_models
from coattend.models.registry import model_entry as model_entry
from coattend.models.table1 import ModelEntry as ModelEntry
