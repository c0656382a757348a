#!/bin/sh
# One node of a replica: multi_node.sh --head --head-ip IP [...] [-- options of vllm serve]
#                        multi_node.sh --worker --head-ip IP [...] [-- options of vllm serve]
# The model, sizes and number of nodes may come from MODEL, TENSOR_PARALLEL_SIZE,
# PIPELINE_PARALLEL_SIZE and NNODES. PYTHON names the interpreter that runs vLLM.
exec "${PYTHON:-python3}" "$(dirname "$(readlink -f "$0")")/../fixes/apply_all.py" launch "$@"
