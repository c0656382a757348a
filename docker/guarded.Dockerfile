# vLLM for CUDA with the fixes and the guard, which stops an engine whose files are not the fixed
# ones, however it is started. From the root of a checkout:
#   docker build -f docker/guarded.Dockerfile -t vllm-guarded:v0.30.0 .
ARG RELEASE=v0.30.0
FROM vllm/vllm-openai:${RELEASE}
ARG RELEASE
ENV FIXES_PROFILE=${RELEASE}
COPY fixes /opt/vllm-fixes/fixes
COPY profiles /opt/vllm-fixes/profiles
COPY patches /opt/vllm-fixes/patches
COPY guard /opt/vllm-fixes/guard
# The guard first: what is installed after the fixes makes the next run import and probe again.
RUN python3 /opt/vllm-fixes/guard/build_guard.py --install \
    && python3 /opt/vllm-fixes/fixes/apply_all.py --profile "$FIXES_PROFILE" pipeline-parallel
# The image's own entry point: the guard is asked by vLLM itself.
ENTRYPOINT ["vllm", "serve"]
