from . import laws as laws
from . import noise as noise
from .datasets.images import Dataset as Dataset
from .errors import DivergedError as DivergedError
from .errors import InputError as InputError
from .methods.baffle import Baffle as Baffle
from .methods.decomfl import DeComFL as DeComFL
from .methods.decomfl import DeComFLProjection as DeComFLProjection
from .methods.fedavg import FedAvg as FedAvg
from .methods.fedavg_topk import FedAvgTopK as FedAvgTopK
from .methods.fedcom import FedCom as FedCom
from .methods.fedzo import FedZO as FedZO
from .methods.method import Method as Method
from .methods.method import Setting as Setting
from .methods.method import option as option
from .methods.mezo import MeZO as MeZO
from .replicas.rules import AdaMM as AdaMM
from .replicas.rules import GridSgd as GridSgd
from .replicas.rules import LowPrecision as LowPrecision
from .replicas.rules import Momentum as Momentum
from .replicas.rules import Sgd as Sgd
from .replicas.rules import SignSgd as SignSgd
from .runs.api import load as load
from .runs.api import train as train
from .runs.config import TrainConfig as TrainConfig
from .runs.run import Run as Run

__version__: str
