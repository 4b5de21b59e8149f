from .optimizer_contract import CheckResult as CheckResult
from .optimizer_contract import ContractReport as ContractReport
from .optimizer_contract import OptimizerContractError as OptimizerContractError
from .optimizer_contract import check_optimizer as check_optimizer
from .optimizer_contract import optimizer_checks as optimizer_checks
