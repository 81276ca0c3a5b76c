"""The unmodified Python SDK against the server. Usage: python_sdk.py NAMESPACE POOL [CLAIM]..., the claims being those
that are there before. Fails with a traceback."""

import sys
import time

from k8s_agent_sandbox import SandboxClient, SandboxWarmPoolNotFoundError
from k8s_agent_sandbox.models import SandboxDirectConnectionConfig

namespace, pool, *others = sys.argv[1:]
client = SandboxClient(SandboxDirectConnectionConfig(api_url="http://127.0.0.1:9"))

begun = time.monotonic()
sandbox = client.create_sandbox(pool, namespace)
took = time.monotonic() - begun
assert took < 1, f"a sandbox took {took:.2f} s"
name = sandbox.claim_name
assert sandbox.sandbox_id == name, (sandbox.sandbox_id, name)
assert sandbox.get_pod_ip() == "127.0.0.1", sandbox.get_pod_ip()
ready, message = sandbox.status()
print("status:", ready, message)

assert sorted(client.list_all_sandboxes(namespace)) == sorted([name, *others])
again = client.get_sandbox(name, namespace)
assert again.sandbox_id == name

ending = client.create_sandbox(pool, namespace, shutdown_after_seconds=600)
ending.terminate()

client.delete_sandbox(name, namespace)
deadline = time.monotonic() + 10
while client.list_all_sandboxes(namespace) != others:
    assert time.monotonic() < deadline, "claims stay"
    time.sleep(0.05)

begun = time.monotonic()
try:
    client.create_sandbox("no-such-pool", namespace)
except SandboxWarmPoolNotFoundError:
    took = time.monotonic() - begun
    assert took < 2, f"a missing pool took {took:.2f} s"
else:
    raise AssertionError("a missing pool gave a sandbox")
print("done")
