"""Lists, watches and patches with PyPI's kubernetes client. Ends with 'all is well' or raises."""

import threading

from kubernetes import client, config, watch

config.load_kube_config()
core = client.CoreV1Api()


def make(name, colour):
    body = client.V1ConfigMap(
        metadata=client.V1ObjectMeta(name=name, labels={"app": "python"}),
        data={"colour": colour},
    )
    return core.create_namespaced_config_map("default", body)


def equal(found, expected):
    assert found == expected, f"expected {expected!r}, found {found!r}"


# list, with selectors and pages
for number in range(5):
    made = make(f"p{number}", "blue")
    assert made.metadata.uid and made.metadata.resource_version
listed = core.list_namespaced_config_map("default", label_selector="app=python")
equal([item.metadata.name for item in listed.items], [f"p{n}" for n in range(5)])
one = core.list_namespaced_config_map("default", field_selector="metadata.name=p3")
equal([item.metadata.name for item in one.items], ["p3"])
page = core.list_namespaced_config_map("default", limit=2, label_selector="app=python")
equal(len(page.items), 2)
rest = core.list_namespaced_config_map(
    "default", limit=10, label_selector="app=python", _continue=page.metadata._continue
)
equal([item.metadata.name for item in rest.items], ["p2", "p3", "p4"])

# patch: merge (as an object) and JSON (as a list)
merged = core.patch_namespaced_config_map(
    "p0", "default", {"data": {"colour": "green"}}, _content_type="application/merge-patch+json"
)
equal(merged.data, {"colour": "green"})
replaced = core.patch_namespaced_config_map(
    "p0",
    "default",
    [{"op": "replace", "path": "/data/colour", "value": "red"}],
    _content_type="application/json-patch+json",
)
equal(replaced.data, {"colour": "red"})

# errors are typed
try:
    core.read_namespaced_config_map("absent", "default")
    raise AssertionError("reading what is absent must fail")
except client.exceptions.ApiException as error:
    equal(error.status, 404)
try:
    make("p0", "blue")
    raise AssertionError("creating twice must fail")
except client.exceptions.ApiException as error:
    equal(error.status, 409)

# watch, from the list's version
seen = []
stream = watch.Watch()
start = core.list_namespaced_config_map("default").metadata.resource_version


def change():
    make("w", "blue")
    core.patch_namespaced_config_map(
        "w", "default", {"data": {"colour": "red"}}, _content_type="application/merge-patch+json"
    )
    core.delete_namespaced_config_map("w", "default")


changing = threading.Thread(target=change)
changing.start()
for event in stream.stream(
    core.list_namespaced_config_map, "default", resource_version=start, timeout_seconds=60
):
    seen.append((event["type"], event["object"].metadata.name))
    if event["type"] == "DELETED":
        stream.stop()
changing.join()
equal(seen, [("ADDED", "w"), ("MODIFIED", "w"), ("DELETED", "w")])

# other kinds
assert "default" in [item.metadata.name for item in core.list_namespace().items]
equal(client.VersionApi().get_code().major, "1")
print("all is well")
