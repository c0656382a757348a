# vLLM for Intel GPUs with the fixes built in. From the root of a checkout:
#   docker build -f docker/xpu.Dockerfile -t vllm-fixed-xpu:v0.30.0 .
ARG RELEASE=v0.30.0
FROM vllm/vllm-openai-xpu:${RELEASE}
ARG RELEASE
ENV FIXES_PROFILE=${RELEASE}
COPY fixes /opt/vllm-fixes/fixes
COPY profiles /opt/vllm-fixes/profiles
COPY patches /opt/vllm-fixes/patches
# The image starts in /workspace/vllm, a source tree: `python -m vllm...` and some of the engine's
# own processes would import that copy, not the installed one. There the next line ends with 3.
WORKDIR /
RUN python3 /opt/vllm-fixes/fixes/apply_all.py --profile "$FIXES_PROFILE" pipeline-parallel
# Found in place, this takes 0.1 s and writes nothing; not in place, no engine starts.
ENTRYPOINT ["sh", "-ec", "python3 /opt/vllm-fixes/fixes/apply_all.py --quiet --profile \"$FIXES_PROFILE\" pipeline-parallel; exec vllm serve \"$@\"", "serve"]
