"""The dialect with PyPI's kubernetes client. Ends with 'all is well' or raises."""

import datetime
import threading

from kubernetes import client, config, dynamic, watch

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

# a dictionary without a content type is a strategic merge, for kinds of Kubernetes itself
taints = [client.V1Taint(key="a", effect="NoSchedule")]
node = client.V1Node(
    metadata=client.V1ObjectMeta(name="py"), spec=client.V1NodeSpec(taints=taints)
)
core.create_node(node)
core.patch_node("py", {"metadata": {"labels": {"x": "y"}}})
equal(core.read_node("py").metadata.labels["x"], "y")
core.patch_node_status("py", {"status": {"conditions": [{"type": "Ready", "status": "True"}]}})
equal(core.read_node("py").status.conditions[0].status, "True")
core.delete_node("py")

# whole collections
for number in range(3):
    labels = {"all": "gone" if number else "kept"}
    metadata = client.V1ObjectMeta(name=f"d{number}", labels=labels)
    core.create_namespaced_config_map("default", client.V1ConfigMap(metadata=metadata))
core.delete_collection_namespaced_config_map("default", label_selector="all=gone")
left = core.list_namespaced_config_map("default", label_selector="all")
equal([item.metadata.name for item in left.items], ["d0"])

# server-side apply, through the dynamic client
dynamic_client = dynamic.DynamicClient(client.ApiClient())
maps = dynamic_client.resources.get(api_version="v1", kind="ConfigMap")


def apply(manager, data, **more):
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "ssa"}, "data": data}
    return maps.server_side_apply(
        body=body, name="ssa", namespace="default", field_manager=manager, **more
    )


apply("one", {"a": "1", "b": "1"})
try:
    apply("two", {"a": "2"})
    raise AssertionError("a conflict must be refused")
except client.exceptions.ApiException as error:
    equal(error.status, 409)
forced = apply("two", {"a": "2"}, force_conflicts=True)
equal(dict(forced.data), {"a": "2", "b": "1"})

# our own kinds are custom objects
objects = client.CustomObjectsApi()
kind = ("storage.mainstay.dev", "v1", "lvmvolumegroups")
group = {
    "apiVersion": "storage.mainstay.dev/v1",
    "kind": "LVMVolumeGroup",
    "metadata": {"name": "py"},
    "spec": {"local": {"nodeName": "n"}},
}
objects.create_cluster_custom_object(*kind, group)
objects.patch_cluster_custom_object(*kind, "py", {"metadata": {"labels": {"x": "y"}}})
status = {"phase": "Ready", "vgSize": "10Gi", "vgFree": "10Gi"}
objects.patch_cluster_custom_object_status(*kind, "py", {"status": status})
found = objects.list_cluster_custom_object(*kind, label_selector="x=y")
equal([item["status"]["phase"] for item in found["items"]], ["Ready"])
objects.delete_cluster_custom_object(*kind, "py")

# who am I, and what may I?
who = client.AuthenticationV1Api().create_self_subject_review(client.V1SelfSubjectReview())
equal(who.status.user_info.username, "admin")
attributes = client.V1ResourceAttributes(verb="create", resource="configmaps")
spec = client.V1SelfSubjectAccessReviewSpec(resource_attributes=attributes)
review = client.V1SelfSubjectAccessReview(spec=spec)
review = client.AuthorizationV1Api().create_self_subject_access_review(review)
equal(review.status.allowed, True)

# leases keep their microseconds and their version
leases = client.CoordinationV1Api()
now = datetime.datetime(2026, 1, 1, 0, 0, 0, 123456, tzinfo=datetime.timezone.utc)
lease = client.V1Lease(
    metadata=client.V1ObjectMeta(name="l"),
    spec=client.V1LeaseSpec(holder_identity="a", renew_time=now),
)
lease = leases.create_namespaced_lease("default", lease)
equal(lease.spec.renew_time, now)
lease.spec.holder_identity = "b"
leases.replace_namespaced_lease("l", "default", lease)
try:
    leases.replace_namespaced_lease("l", "default", lease)
    raise AssertionError("a stale version must be refused")
except client.exceptions.ApiException as error:
    equal(error.status, 409)

# events of an object
event = client.CoreV1Event(
    metadata=client.V1ObjectMeta(name="e"),
    involved_object=client.V1ObjectReference(kind="Node", name="n"),
    reason="Painted",
    message="it is blue now",
    type="Normal",
    first_timestamp=now,
    last_timestamp=now,
    count=1,
)
core.create_namespaced_event("default", event)
events = core.list_namespaced_event("default", field_selector="involvedObject.name=n")
equal([event.reason for event in events.items], ["Painted"])

# a namespace goes
core.create_namespace(client.V1Namespace(metadata=client.V1ObjectMeta(name="py")))
start = core.list_namespace().metadata.resource_version
core.delete_namespace("py", propagation_policy="Foreground")
stream = watch.Watch()
for event in stream.stream(
    core.list_namespace, resource_version=start, field_selector="metadata.name=py"
):
    if event["type"] == "DELETED":
        stream.stop()
assert "py" not in [item.metadata.name for item in core.list_namespace().items]
print("all is well")
